"""Every world looks different, within the bounds, and moves as it did."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mjtrain.config import (
    ActionTerm,
    CameraConfig,
    EnvConfig,
    EventTerm,
    ObservationTerm,
    RewardTerm,
    TerminationTerm,
)
from mjtrain.env.env import Env
from mjtrain.mdp import appearance, rewards, terminations
from mjtrain.mdp.observations import camera
from mjtrain.runtime.errors import RequestError
from mjtrain.sim import rotations
from support.envs import NUM_ENVS, actions_for, make_env
from support.scenes import SCENE

MIDDLE = (0.25, 0.75)
CAMERAS = {
    "left": CameraConfig(camera="side", width=24, height=20, streams=("rgb", "depth")),
    "chase": CameraConfig(width=24, height=20, streams=("rgb", "depth")),
}
FLOOR, BOX, BALL = 0, 3, 4

# func, its parameters, whether it changes depths, and for each field: the rows that change, and the bounds of the
# value ("value"), of value - nominal ("offset") or of value / nominal ("ratio")
TERMS: dict[str, tuple[Callable[..., None], dict[str, Any], bool, dict[str, tuple]]] = {
    "geom_color": (
        appearance.geom_color,
        {"geoms": ("floor",), "bodies": ("slider",), "red": MIDDLE, "green": (0.5, 0.6), "blue": (0.0, 0.0)},
        False,
        {"geom_rgba": ("value", [FLOOR, BOX, BALL], 0.0, 1.0)},
    ),
    "material_color": (
        appearance.material_color,
        {"materials": ("green",), "red": MIDDLE, "green": MIDDLE, "blue": MIDDLE},
        False,
        {"mat_rgba": ("value", [1], 0.25, 1.0)},
    ),
    "geom_material": (
        appearance.geom_material,
        {"geoms": ("box", "wall"), "materials": (".*",)},
        False,
        {"geom_matid": ("value", [2, 3], 0, 1)},
    ),
    "material_texture": (
        appearance.material_texture,
        {"materials": ("green",), "textures": (".*",)},
        False,
        {"mat_texid": ("value", [1], -1, 1)},
    ),
    "light_position": (
        appearance.light_position,
        {"offset_m": (-0.5, 0.5)},
        False,
        {field: ("offset", [0], -0.5, 0.5) for field in ("light_pos", "light_pos0", "light_poscom0")},
    ),
    "light_direction": (
        appearance.light_direction,
        {"lights": ("lamp",), "angle_rad": (-0.3, 0.3)},
        False,
        {field: ("offset", [0], -0.6, 0.6) for field in ("light_dir", "light_dir0")},
    ),
    "light_intensity": (
        appearance.light_intensity,
        {"factor": (0.5, 1.5)},
        False,
        {field: ("ratio", [0], 0.5, 1.5) for field in ("light_diffuse", "light_specular")},
    ),
    "light_color": (
        appearance.light_color,
        {"red": MIDDLE, "green": MIDDLE, "blue": MIDDLE},
        False,
        {"light_diffuse": ("value", [0], 0.25, 0.75)},
    ),
    "camera_position": (
        appearance.camera_position,
        {"offset_m": (-0.1, 0.1)},
        True,
        {field: ("offset", [0, 2], -0.1, 0.1) for field in ("cam_pos", "cam_pos0", "cam_poscom0")},
    ),
    "camera_orientation": (
        appearance.camera_orientation,
        {"angle_rad": (-0.1, 0.1)},
        True,
        {field: ("offset", [0, 2], -0.2, 0.2) for field in ("cam_quat", "cam_mat0")},
    ),
    "field_of_view": (
        appearance.field_of_view,
        {"cameras": ("left",), "factor": (0.9, 1.1)},
        True,
        {"cam_fovy": ("ratio", [0], 0.9, 1.1)},
    ),
}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Env]:
    def made(
        name: str = "",
        *,
        mode: str = "startup",
        seed: int = 0,
        seen: bool = True,
        num_envs: int = NUM_ENVS,
        **params: Any,
    ) -> Env:
        robot = tmp_path / "scene.xml"
        robot.write_text(SCENE)
        image = {"seen": ObservationTerm(func=camera, params={"camera": "left", "stream": "rgb"})}
        config = EnvConfig(
            robot=str(robot),
            decimation=2,
            episode_length_s=0.02,
            actions={"all": ActionTerm()},
            observations={"image": image} if seen else {"actor": {"count": ObservationTerm(func=count)}},
            rewards={"alive": RewardTerm(func=rewards.is_alive, weight=1.0)},
            terminations={"time_out": TerminationTerm(func=terminations.time_out, truncates=True)},
            events={name: make_event(name, mode, params)} if name else {},
            cameras=CAMERAS if seen else {},
        )
        return make_env(config, seed=seed, num_envs=num_envs)

    return made


def make_event(name: str, mode: str, params: dict[str, Any]) -> EventTerm:
    func, given, _, _ = TERMS[name]
    return EventTerm(func=func, params={**given, **params}, mode=mode)  # pyright: ignore[reportArgumentType]


def count(env: Env) -> torch.Tensor:
    return env.episode_step[:, None].float()


@pytest.mark.parametrize("name", TERMS)
def test_every_world_looks_different_within_the_bounds(name: str, make: Callable[..., Env]) -> None:
    env, plain = make(name, seed=3), make()
    renderer = env.cameras.renderer
    for field, (kind, rows, low, high) in TERMS[name][3].items():
        values, nominal = renderer.expand(field), renderer.nominal[field]
        changed = values if kind == "value" else values - nominal if kind == "offset" else values / nominal
        assert (changed[:, rows] >= low - 1e-5).all(), field
        assert (changed[:, rows] <= high + 1e-5).all(), field
        others = [row for row in range(values.shape[1]) if row not in rows]
        assert torch.equal(values[:, others], nominal[others].expand_as(values[:, others])), field
        discrete = not values.is_floating_point()
        assert values.flatten(1).unique(dim=0).shape[0] >= (2 if discrete else NUM_ENVS), field
    assert renderer.state_dict().keys() >= TERMS[name][3].keys()
    streams = [(camera, stream) for camera in ("left", "chase") for stream in ("rgb", "depth")]
    same = {pair: torch.equal(env.cameras.images(*pair), plain.cameras.images(*pair)) for pair in streams}
    assert not same["left", "rgb"] or name == "light_direction", "the lamp is not a spot"
    assert same["left", "depth"] is not TERMS[name][2]
    assert same["chase", "depth"] is not (TERMS[name][2] and name != "field_of_view"), "a camera that follows a body"


@pytest.mark.parametrize("name", TERMS)
def test_at_resets_only_worlds_that_begin_change_and_nothing_accumulates(name: str, make: Callable[..., Env]) -> None:
    env = make(name, mode="reset", seed=5)
    field, (kind, rows, low, high) = next(iter(TERMS[name][3].items()))
    values, nominal = env.cameras.renderer.expand(field), env.cameras.renderer.nominal[field]
    env.episode_step[: NUM_ENVS // 2] = 3
    changes = 0
    for action in actions_for(env, 30):
        before = values.clone()
        env.step(action)
        begun = env.episode_step == 0
        assert torch.equal(values[~begun], before[~begun])
        changes += int(not torch.equal(values[begun], before[begun]))
    assert changes > 3
    changed = values if kind == "value" else values - nominal if kind == "offset" else values / nominal
    assert (changed[:, rows] >= low - 1e-5).all()
    assert (changed[:, rows] <= high + 1e-5).all()


@pytest.mark.parametrize("name", [name for name in TERMS if next(iter(TERMS[name][3].values()))[0] != "value"])
def test_the_looks_of_one_world_do_not_accumulate(name: str, make: Callable[..., Env]) -> None:
    field, (kind, rows, low, high) = next(iter(TERMS[name][3].items()))
    nominal = make().cameras.renderer.nominal[field]
    env = make(name, mode="reset", seed=5, num_envs=1)
    for _ in range(20):
        env.reset(torch.ones(1, dtype=torch.bool))
        values = env.cameras.renderer.expand(field)
        changed = (values - nominal if kind == "offset" else values / nominal)[:, rows]
        assert (changed >= low - 1e-5).all()
        assert (changed <= high + 1e-5).all()
    assert torch.equal(env.cameras.renderer.nominal[field], nominal)


def test_worlds_move_as_they_did(make: Callable[..., Env]) -> None:
    env, plain = make("camera_position"), make()
    for action in actions_for(env, 3):
        env.step(action)
        plain.step(action)
    assert torch.equal(env.state.qpos, plain.state.qpos)


@pytest.mark.parametrize("name", ["geom_color", "camera_position", "field_of_view"])
def test_the_looks_of_the_worlds_are_part_of_the_state(name: str, make: Callable[..., Env]) -> None:
    first, second = make(name, mode="reset", seed=1), make(name, mode="reset", seed=2)
    actions = actions_for(first, 14)
    for action in actions[:7]:
        first.step(action)
    second.load_state_dict(first.state_dict())
    for action in actions[7:]:
        seen, other = (env.step(action)[0]["image"] for env in (first, second))
        assert torch.equal(seen, other)
        assert not torch.equal(seen[0], seen[1])


def test_a_camera_that_follows_a_body_is_turned_as_one_that_does_not(make: Callable[..., Env]) -> None:
    """A camera of the world has the same axes in both fields; and no turn is no change."""
    renderer = make("camera_orientation").cameras.renderer
    axes = rotations.rotate(renderer.expand("cam_quat")[:, :1, None], torch.eye(3).expand(NUM_ENVS, 1, 3, 3))
    assert torch.allclose(axes.transpose(-1, -2), renderer.expand("cam_mat0")[:, :1], atol=1e-5)
    env, plain = make("camera_orientation", angle_rad=(0.0, 0.0)), make()
    assert torch.equal(env.cameras.images("left", "rgb"), plain.cameras.images("left", "rgb"))


def test_colors_are_those_that_were_drawn(make: Callable[..., Env]) -> None:
    env = make("geom_color", red=(1.0, 1.0), green=(0.0, 0.0), blue=(0.0, 0.0))
    rgba = env.cameras.renderer.expand("geom_rgba")
    assert torch.equal(rgba[:, BALL], torch.tensor([1.0, 0.0, 0.0, 1.0]).expand(NUM_ENVS, -1))
    red, green, blue = env.cameras.images("left", "rgb")[0, :, -1, 0]
    assert red > 3 * max(green, blue, 1), "the floor"


def test_grey_takes_the_place_of_the_material(make: Callable[..., Env]) -> None:
    """MuJoCo draws the material where the colour is exactly this grey."""
    grey, lighter = (
        make("geom_color", red=(value, value), green=(value, value), blue=(value, value)).cameras.images("left", "rgb")
        for value in (0.5, 0.505)
    )
    assert (grey.int() - lighter.int()).abs().max() <= 2


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("light_position", {"lights": ("sun",)}, "no light 'sun'; it has lamp"),
        ("camera_position", {"cameras": ("side",)}, "no camera 'side'; it has left, chase"),
        ("material_color", {"materials": ("gold",)}, "no material 'gold'; it has checked, green"),
        ("material_texture", {"textures": ("sky",)}, "no texture 'sky'; it has checks, dull"),
    ],
)
def test_a_part_that_the_robot_lacks(name: str, params: dict[str, Any], message: str, make: Callable[..., Env]) -> None:
    with pytest.raises(RequestError, match=message):
        make(name, **params)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("geom_color", {"red": (0.5, 2.0)}, r"red 0\.5 2: each must be at least 0 and at most 1"),
        ("material_color", {"blue": (math.nan, 1.0)}, "blue nan 1: each must be at least 0 and at most 1 and finite"),
        ("light_color", {"green": (-0.1, 1.0)}, r"green -0\.1 1: each"),
        ("light_intensity", {"factor": (-1.0, 1.0)}, "factor -1 1: each must be at least 0"),
        ("light_position", {"offset_m": (0.0, math.inf)}, "offset_m 0 inf: each must be finite"),
        ("light_direction", {"angle_rad": (math.nan, 0.0)}, "angle_rad nan 0: each must be finite"),
        ("camera_position", {"offset_m": (math.nan, 0.0)}, "offset_m nan 0: each must be finite"),
        ("camera_orientation", {"angle_rad": (0.0, math.nan)}, "angle_rad 0 nan: each must be finite"),
        ("field_of_view", {"factor": (0.0, 1.0)}, r"factor 0 1: each must be at least 0\.001"),
        ("field_of_view", {"factor": (1.0, 9.0)}, "factor 1 9: both must be at most "),
    ],
)
def test_bounds_that_make_no_picture(name: str, params: dict[str, Any], message: str, make: Callable[..., Env]) -> None:
    with pytest.raises(RequestError, match=message):
        make(name, **params)


def test_an_environment_without_cameras_has_no_looks(make: Callable[..., Env]) -> None:
    with pytest.raises(RequestError, match=r"the environment has no cameras; give EnvConfig\(cameras="):
        make("light_intensity", seen=False)
