"""The cameras of all worlds: what the images hold, and on what they depend."""

from collections.abc import Hashable, Iterator
from dataclasses import replace

import mujoco
import numpy as np
import pytest
import torch
import warp as wp

from mjtrain.config import CameraConfig
from mjtrain.sim.cameras import worlds
from mjtrain.sim.cameras.renderer import SEEN_FIELDS, CameraRenderer
from support.scenes import SCENE, SIDE, load_hanging, load_scene, poses

NUM_ENVS = 5
ROD, SLIDER, FLOOR = 1, 2, 3


def make_renderer(
    cameras: dict[str, CameraConfig] | None = None, num_envs: int = NUM_ENVS, num_threads: int = 1
) -> CameraRenderer:
    return CameraRenderer(load_scene(), num_envs, cameras or {"side": SIDE}, device="cpu", num_threads=num_threads)


@pytest.fixture
def renderer() -> Iterator[CameraRenderer]:
    made = make_renderer()
    yield made
    made.close()


def copy_images(renderer: CameraRenderer) -> dict[str, torch.Tensor]:
    return {f"{name}.{s}": image.clone() for name, streams in renderer.images.items() for s, image in streams.items()}


def test_images_have_the_shapes_that_policies_take(renderer: CameraRenderer) -> None:
    streams = renderer.images["side"]
    assert {name: (image.dtype, tuple(image.shape)) for name, image in streams.items()} == {
        "rgb": (torch.uint8, (NUM_ENVS, 3, 40, 48)),
        "depth": (torch.float32, (NUM_ENVS, 1, 40, 48)),
        "segmentation": (torch.uint8, (NUM_ENVS, 1, 40, 48)),
    }
    before = [image.data_ptr() for image in streams.values()]
    renderer.render(poses(NUM_ENVS))
    assert [image.data_ptr() for image in renderer.images["side"].values()] == before
    assert all(image.any() for image in streams.values())


def test_colors_depths_and_classes_are_of_the_same_things() -> None:
    """From above: distances that follow from the scene, and the order of the colour channels."""
    top = replace(SIDE, camera="top", far_m=4.9, near_m=3.9)
    renderer = make_renderer({"from_above": top}, num_envs=1)
    renderer.render(torch.zeros(1, 2))
    rgb, depth, segmentation = (renderer.images["from_above"][name][0] for name in top.streams)
    box = depth[0, 17, 21], segmentation[0, 17, 21], rgb[:, 17, 21]
    assert box[0] == pytest.approx(4.2, abs=1e-4), "the lid of the box is at 0.8 m, the camera at 5 m"
    assert box[1] == SLIDER
    assert box[2].argmax() == 1, "green"
    rod = segmentation[0] == ROD
    assert rgb[2][rod].float().mean() > 2 * rgb[0][rod].float().mean(), "blue"
    assert depth[0][rod].min() == pytest.approx(3.92, abs=0.02)
    assert depth[0][segmentation[0] == FLOOR].unique().tolist() == [pytest.approx(4.9)], "clamped to far_m"
    assert depth.min() == pytest.approx(3.9), "the ball is at 3.8 m: clamped to near_m"


def test_depth_is_along_the_optical_axis_and_a_miss_is_far(renderer: CameraRenderer) -> None:
    renderer.render(torch.zeros(NUM_ENVS, 2))
    depth, segmentation = renderer.images["side"]["depth"], renderer.images["side"]["segmentation"]
    assert (depth[segmentation == 0] == SIDE.far_m).all()
    assert (depth[segmentation > 0] < SIDE.far_m).all()
    flat = CameraRenderer(_wall(), 1, {"c": CameraConfig(streams=("depth",))}, device="cpu", num_threads=1)
    flat.render(torch.zeros(1, 0))
    assert torch.allclose(flat.images["c"]["depth"], torch.tensor(2.0), atol=1e-5), "not along the ray"


def _wall() -> mujoco.MjModel:
    wall = '<geom type="box" size="9 9 1" pos="0 0 -3"/><camera name="c" fovy="90"/>'
    near_sighted = '<statistic extent="0.02"/>'  # mujoco.Renderer would see as far as 50 times this
    return mujoco.MjModel.from_xml_string(f"<mujoco>{near_sighted}<worldbody>{wall}</worldbody></mujoco>")


def test_options_of_physics_that_mujoco_warp_lacks_do_not_matter() -> None:
    spec = mujoco.MjSpec.from_string(SCENE)
    spec.option.solver = mujoco.mjtSolver.mjSOL_PGS
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICIT
    model = spec.compile()
    other = CameraRenderer(model, NUM_ENVS, {"side": SIDE}, device="cpu", num_threads=1)
    expected = make_renderer()
    for renderer in (other, expected):
        renderer.render(poses(NUM_ENVS))
    assert all(torch.equal(image, copy_images(other)[name]) for name, image in copy_images(expected).items())
    assert model.opt.solver == mujoco.mjtSolver.mjSOL_PGS, "the model itself stays"


def test_the_sky_is_seen_where_nothing_is_hit(renderer: CameraRenderer) -> None:
    renderer.render(torch.zeros(NUM_ENVS, 2))
    sky = renderer.images["side"]["rgb"][0][:, 0, 0]
    assert sky.tolist() == [51, 102, 153]


def test_the_picture_of_a_world_depends_on_that_world_only(renderer: CameraRenderer) -> None:
    qpos = poses(NUM_ENVS)
    renderer.render(qpos)
    before = copy_images(renderer)
    others = poses(NUM_ENVS, seed=1)
    others[2] = qpos[2]
    renderer.expand("geom_rgba")[3] = torch.rand(4)
    renderer.render(others)
    after = copy_images(renderer)
    alone = make_renderer(num_envs=1)
    alone.render(qpos[2:3])
    for name, image in before.items():
        assert torch.equal(image[2], after[name][2]), name
        assert torch.equal(image[2], copy_images(alone)[name][0]), name
        assert not torch.equal(image[1], after[name][1]), name


@pytest.mark.parametrize("num_envs", [NUM_ENVS, 2, 1])
def test_threads_render_what_one_thread_renders(num_envs: int) -> None:
    cameras = {"side": SIDE, "eye": CameraConfig(streams=("rgb", "depth"), interval=2)}
    one, several = make_renderer(cameras, num_envs), make_renderer(cameras, num_envs, num_threads=3)
    for renderer in (one, several):
        renderer.expand("cam_pos")[:, 1] += torch.linspace(0, 0.3, num_envs)[:, None]
    for seed in range(10):
        qpos = poses(num_envs, seed)
        one.render(qpos)
        several.render(qpos)
        expected, found = copy_images(one), copy_images(several)
        assert all(torch.equal(image, found[name]) for name, image in expected.items())
    several.close()


def test_a_kernel_is_built_once_for_each_kind_of_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    built: dict[Hashable, wp.Kernel | None] = {}
    monkeypatch.setattr(worlds, "_kernels", built)
    images = {}
    for name, shadows, count in (("first", False, 1), ("other", True, 2), ("again", False, 2)):
        renderer = make_renderer({"side": replace(SIDE, shadows=shadows)}, 4, num_threads=2)
        renderer.render(poses(4))
        images[name] = copy_images(renderer)
        renderer.close()
        assert len(built) == count, name
    assert all(torch.equal(image, images["again"][stream]) for stream, image in images["first"].items())
    assert not torch.equal(images["other"]["side.rgb"], images["first"]["side.rgb"])


def test_a_height_field_is_built_once() -> None:
    spec = mujoco.MjSpec.from_string(SCENE)
    spec.add_hfield(name="hills", size=[2, 2, 0.5, 0.1], nrow=9, ncol=9, userdata=np.random.default_rng(0).random(81))
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_HFIELD, hfieldname="hills", pos=[0, 1, 0.2], rgba=[1, 1, 0, 1])
    cameras = {"side": SIDE, "top": replace(SIDE, interval=2)}
    one, several = (CameraRenderer(spec.compile(), 3, cameras, device="cpu", num_threads=threads) for threads in (1, 3))
    contexts = [context for worlds in several._worlds for context in worlds._contexts]
    assert len(contexts) == 6
    assert len({tuple(context.hfield_bvh_id.numpy()) for context in contexts}) == 1
    without = make_renderer(cameras, 3)
    for renderer in (one, several, without):
        renderer.render(poses(3))
    expected, found, bare = copy_images(one), copy_images(several), copy_images(without)
    assert all(torch.equal(image, found[name]) for name, image in expected.items())
    assert not torch.equal(expected["side.depth"], bare["side.depth"])
    several.close()


def test_only_what_is_asked_for_is_rendered() -> None:
    renderer = make_renderer({"side": SIDE, "eye": CameraConfig(interval=3), "low": replace(SIDE, camera="top")})
    renderer.render(poses(NUM_ENVS), ["eye"])
    assert renderer.images["eye"]["rgb"].any()
    assert not renderer.images["side"]["rgb"].any()
    renderer.render(poses(NUM_ENVS))
    assert renderer.images["side"]["rgb"].any()
    assert renderer.images["low"]["rgb"].any(), "two cameras of the config may be of different places"


def test_one_camera_of_the_robot_may_serve_two_of_the_config() -> None:
    large = replace(SIDE, camera="side", width=96, height=80, streams=("segmentation",))
    renderer = make_renderer({"side": SIDE, "large": large})
    renderer.render(poses(NUM_ENVS))
    small, fine = renderer.images["side"]["segmentation"], renderer.images["large"]["segmentation"]
    assert (fine[..., ::2, ::2] == small).float().mean() > 0.95


def test_a_camera_on_a_body_moves_with_it() -> None:
    renderer = make_renderer({"eye": CameraConfig(streams=("depth",))})
    renderer.render(torch.zeros(NUM_ENVS, 2) + torch.arange(NUM_ENVS)[:, None] * 0.3)
    assert renderer.images["eye"]["depth"].flatten(1).unique(dim=0).shape[0] == NUM_ENVS


def test_the_camera_sees_the_groups_of_geoms_that_it_is_told_to() -> None:
    everything = replace(SIDE, camera="side", geom_groups=(0, 3), classes={"hidden": ("hidden",)})
    default = replace(everything, geom_groups=(0, 1, 2), streams=("depth",))
    renderer = make_renderer({"everything": everything, "default": default})
    renderer.render(torch.zeros(NUM_ENVS, 2))
    hidden = renderer.images["everything"]["segmentation"] == 1
    assert hidden.any()
    assert (renderer.images["everything"]["depth"][hidden] < renderer.images["default"]["depth"][hidden]).all()


def test_lights_cast_shadows_if_they_are_asked_to() -> None:
    renderer = make_renderer({"side": SIDE, "shaded": replace(SIDE, camera="side", shadows=True)})
    renderer.render(torch.zeros(NUM_ENVS, 2))
    floor = (renderer.images["side"]["segmentation"] == FLOOR).expand(-1, 3, -1, -1)
    light, shaded = renderer.images["side"]["rgb"][floor].int(), renderer.images["shaded"]["rgb"][floor].int()
    assert (shaded <= light).all()
    assert 0.01 < (shaded < light - 20).float().mean() < 0.6


@pytest.mark.parametrize("field", [field for field in SEEN_FIELDS if not field.endswith("0")])
def test_a_field_starts_as_compiled_and_changes_only_its_world(renderer: CameraRenderer, field: str) -> None:
    qpos = poses(NUM_ENVS)
    renderer.render(qpos)
    before = copy_images(renderer)
    values = renderer.expand(field)
    assert torch.equal(values, renderer.nominal[field].expand_as(values)), "as compiled"
    assert renderer.expand(field).data_ptr() == values.data_ptr()
    renderer.render(qpos)
    assert all(torch.equal(image, before[name]) for name, image in copy_images(renderer).items())
    _change(values[1], field)
    renderer.render(qpos)
    rgb = renderer.images["side"]["rgb"]
    assert not torch.equal(rgb[1], before["side.rgb"][1])
    assert torch.equal(rgb[[0, 2, 3, 4]], before["side.rgb"][[0, 2, 3, 4]])


def test_a_field_that_a_rollout_expands_can_be_written_after_it(renderer: CameraRenderer) -> None:
    with torch.inference_mode():
        renderer.expand("geom_rgba")
    renderer.load_state_dict(renderer.state_dict())
    renderer.expand("geom_rgba").mul_(0.5)


@pytest.mark.parametrize("field", ["cam_pos0", "cam_mat0"])
def test_a_camera_that_follows_a_body_reads_the_fields_for_it(field: str) -> None:
    renderer = make_renderer({"chase": CameraConfig(streams=("depth",))})
    renderer.render(torch.zeros(NUM_ENVS, 2))
    before = copy_images(renderer)["chase.depth"]
    renderer.expand(field)[1] += 0.2 * torch.eye(3)[0]
    renderer.render(torch.zeros(NUM_ENVS, 2))
    after = renderer.images["chase"]["depth"]
    assert [torch.equal(*pair) for pair in zip(before, after, strict=True)] == [True, False, True, True, True]


def _change(row: torch.Tensor, field: str) -> None:
    """Give one world a value that looks different."""
    if field in ("geom_matid", "light_active"):
        row.zero_()
    elif field == "mat_texid":
        row[1, 1] = 0  # the green box gets the checks
    elif field in ("cam_quat", "light_dir"):
        row.copy_(row.roll(1, -1))
    else:
        row.add_(0.2)


def test_the_texture_of_a_material_is_seen() -> None:
    renderer = make_renderer(num_envs=2)
    box = renderer.expand("geom_matid")[1]
    box[3] = 0  # of the material checked
    renderer.render(torch.zeros(2, 2))
    seen = (renderer.images["side"]["segmentation"] == SLIDER).expand(-1, 3, -1, -1)
    red, blue = (renderer.images["side"]["rgb"][1, channel][seen[1, channel]].int() for channel in (0, 2))
    assert (red > blue + 50).any()
    assert (blue > red + 50).any()


def test_the_looks_are_kept_and_restored() -> None:
    first, second = make_renderer(), make_renderer()
    first.expand("geom_rgba").copy_(torch.rand(NUM_ENVS, *first.nominal["geom_rgba"].shape))
    first.expand("cam_fovy").add_(torch.rand(NUM_ENVS, 1) * 10)
    state = first.state_dict()
    second.load_state_dict(state)
    for renderer in (first, second):
        renderer.render(poses(NUM_ENVS))
    assert all(torch.equal(image, copy_images(second)[name]) for name, image in copy_images(first).items())
    state["geom_rgba"] = state["geom_rgba"][:2]
    with pytest.raises(ValueError, match=r"geom_rgba of the cameras has shape \(2, 6, 4\), here it is \(5, 6, 4\)"):
        second.check_state(state)
    assert second.state_dict().keys() == {"geom_rgba", "cam_fovy"}


def test_rays_computed_in_each_world_are_those_that_were_precomputed(renderer: CameraRenderer) -> None:
    renderer.render(poses(NUM_ENVS))
    before = copy_images(renderer)
    renderer.expand("cam_fovy")
    renderer.render(poses(NUM_ENVS))
    assert all(torch.equal(image, before[name]) for name, image in copy_images(renderer).items())


def test_images_outlive_the_renderer() -> None:
    renderer = make_renderer(num_threads=2)
    renderer.render(poses(NUM_ENVS))
    renderer.close()
    renderer.close()
    assert renderer.images["side"]["rgb"].any()


@pytest.fixture(params=["default", "own"])
def stream(request: pytest.FixtureRequest) -> Iterator[None]:
    """Torch's default stream, or one that waits for no other."""
    with torch.cuda.stream(torch.cuda.default_stream() if request.param == "default" else torch.cuda.Stream()):
        yield


@pytest.mark.supports("cameras", engine="warp")
@pytest.mark.gpu
@pytest.mark.usefixtures("stream")
def test_a_gpu_renders_what_a_cpu_renders() -> None:
    """One captured graph, captured again when a field gets an axis of worlds."""
    cameras = {"side": SIDE, "eye": CameraConfig(streams=("rgb", "depth"), interval=2)}
    on_cpu = make_renderer(cameras)
    on_gpu = CameraRenderer(load_scene(), NUM_ENVS, cameras, device="cuda:0", num_threads=1)
    for seed in range(3):
        if seed == 2:
            for renderer in (on_cpu, on_gpu):
                renderer.expand("cam_fovy").add_(5)
        on_cpu.render(poses(NUM_ENVS, seed))
        on_gpu.render(poses(NUM_ENVS, seed).to("cuda:0"))
        expected, found = copy_images(on_cpu), copy_images(on_gpu)
        for name, image in expected.items():
            same = (image.float() - found[name].cpu().float()).abs() <= (1e-3 if "depth" in name else 2)
            assert same.float().mean() > 0.995, name


def test_mocap_bodies_are_where_keyframe_home_has_them() -> None:
    camera = CameraConfig(camera="top", width=20, height=20, streams=("depth",), far_m=9.0)
    renderer = CameraRenderer(load_hanging().compile(), 2, {"top": camera}, device="cpu", num_threads=1)
    renderer.render(torch.zeros(2, 1))
    depth = renderer.images["top"]["depth"]
    assert depth[:, 0, 10, 10].tolist() == pytest.approx([2.9, 2.9], abs=1e-4), "the lid is at 2.1 m, the camera at 5 m"
