"""What the request stage says about cameras, without rendering anything."""

from dataclasses import replace

import mujoco
import numpy as np
import pytest

from mjtrain.config import CameraConfig, RobotConfig
from mjtrain.env.term_check import find_term_problems
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.cameras.cameras import check_cameras
from mjtrain.sim.robots.model import robot_only
from support.scenes import SCENE, SIDE, load_scene

MISTAKES = {
    "--env.cameras.left.camera left: the robot has no such camera; it has side, top, chase, eye": {"camera": ""},
    "--env.cameras.left.camera front: the robot has no such camera; it has side, top, chase, eye": {"camera": "front"},
    "--env.cameras.left.streams (none): give one or more of rgb, depth, segmentation, each once": {"streams": ()},
    "--env.cameras.left.streams rgb rgb: give one or more of rgb, depth, segmentation, each once": {
        "streams": ("rgb", "rgb")
    },
    "--env.cameras.left.far-m 0.01: give a number above near_m, which is 0.01; what is beyond reads far_m": {
        "far_m": 0.01
    },
    "--env.cameras.left.interval 0: must be at least 1": {"interval": 0},
    "--env.cameras.left.width 0: must be at least 1": {"width": 0},
    "--env.cameras.left.geom-groups 4 5: has no geom of the robot, whose groups are 0, 3": {"geom_groups": (4, 5)},
    "--env.cameras.left.geom-groups (none): give one or more of 0 to 5": {"geom_groups": ()},
    "--env.cameras.left.classes: segmentation needs classes, such as --env.cameras.left.classes.robot 'pole|cart'": {
        "classes": {}
    },
    "--env.cameras.left.classes.rod rot: matches no geom and no body with geoms; the robot has geoms floor, hidden, "
    "wall, box, rod and bodies world, slider, arm": {"classes": {"rod": ("rot",)}},
    "--env.cameras.left.classes.rod ro[d: is not a valid regular expression: unterminated character set at position 2": {  # noqa: E501
        "classes": {"rod": ("ro[d",)}
    },
    "--env.cameras.left.classes.rod: give at least one regular expression over geoms and bodies": {
        "classes": {"rod": ()}
    },
    "--env.cameras.left.classes.rod hidden: the camera sees none of these geoms, which are in group 3; add it to "
    "--env.cameras.left.geom-groups": {"classes": {"rod": ("hidden",)}},
}

BEYOND_LIMITS = {
    "width 0: must be at least 1": {"width": 0},
    "height -3: must be at least 1": {"height": -3},
    "interval 0: must be at least 1": {"interval": 0},
    "streams infrared: choose from rgb, depth, segmentation": {"streams": ("infrared",)},
    "near-m 0: must be more than 0": {"near_m": 0.0},
    "near-m nan: must be more than 0 and finite": {"near_m": float("nan")},
    "far-m inf: must be at most 1e+30 and finite": {"far_m": float("inf")},
    "far-m 1e+39: must be at most 1e+30": {"far_m": 1e39},
    "geom-groups 0 6: each must be at least 0 and at most 5": {"geom_groups": (0, 6)},
}


@pytest.mark.parametrize("message", BEYOND_LIMITS)
def test_a_value_beyond_its_limits_is_refused_before_a_model_is_read(message: str) -> None:
    env = replace(robot_only(RobotConfig()), cameras={"left": replace(SIDE, **BEYOND_LIMITS[message])})
    assert find_term_problems(env) == [f"--env.cameras.left.{message}"]


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_flag(message: str) -> None:
    camera = replace(SIDE, **{"camera": "side", **MISTAKES[message]})
    with pytest.raises(RequestError) as raised:
        check_cameras(load_scene(), {"left": camera})
    assert str(raised.value) == message


def test_a_sensor_is_stretched_to_one_ratio_only() -> None:
    spec = mujoco.MjSpec.from_string(SCENE)
    camera = spec.camera("side")
    camera.resolution, camera.sensor_size, camera.focal_length = [640, 480], [0.012, 0.009], [0.01, 0.01]
    model = spec.compile()
    half = CameraConfig(camera="side", width=24, height=20)
    assert len(check_cameras(model, {"side": SIDE, "half": half})) == 2
    with pytest.raises(RequestError) as raised:
        check_cameras(model, {"side": SIDE, "half": replace(half, width=20)})
    assert str(raised.value) == (
        "--env.cameras.half.width 20: the camera side has a sensor (sensorsize), which is stretched to the 48 x 40 "
        "pixels of side; give the same ratio to the height, which is 20"
    )


def test_a_camera_has_the_name_of_its_entry() -> None:
    model = load_scene()
    found = check_cameras(model, {"side": CameraConfig(), "left": CameraConfig(camera="top")})
    assert {name: model.camera(camera.index).name for name, camera in found.items()} == {"side": "side", "left": "top"}


def test_a_geom_is_of_the_first_class_that_matches_it_or_its_body() -> None:
    model = load_scene()
    classes = {"arm": ("arm|box",), "all": (".*",)}
    found = check_cameras(model, {"side": replace(SIDE, classes=classes)})["side"].class_of_geom
    named = {model.geom(index).name or "ball": int(label) for index, label in enumerate(found)}
    assert named == {"floor": 2, "hidden": 2, "wall": 2, "box": 1, "ball": 2, "rod": 1}


def test_what_no_class_matches_is_background() -> None:
    found = check_cameras(load_scene(), {"side": replace(SIDE, classes={"rod": ("rod",)})})["side"].class_of_geom
    assert np.count_nonzero(found) == 1
