"""Runs of before name term functions that have moved since; each of them is still found."""

import importlib
import inspect

import pytest

from mjtrain.config.renamed import RENAMED_FUNCTIONS
from mjtrain.evaluation.eval_config import keep_level

# The public functions of mjtrain.env that could be terms before they moved to mjtrain.mdp, with their parameters.
BEFORE = {
    "events": {
        "add_uniform_joint_offset": "joint position velocity",
        "scale_joint_positions": "joints factor",
        "random_base_pose": "joint xy z yaw linear_velocity angular_velocity",
        "spawn_on_patch": "joint curriculum",
        "push": "joint linear angular",
    },
    "gait": {
        "clock": "frequency_hz command",
        "swing": "frequency_hz offsets duty command",
        "foot_heights": "sensors radius_m",
        "keep_step": "contact_sensors frequency_hz offsets duty command",
        "lift_feet": "position_sensors radius_m height_m tolerance_m frequency_hz offsets duty command",
        "slip": "contact_sensors velocity_sensors",
    },
    "observations": {
        "joint_pos": "joint",
        "joint_vel": "joint",
        "joint_cos_sin": "joint",
        "joints_from_home": "joints",
        "joint_velocities": "joints",
        "sensor": "sensor",
        "sensors": "sensors",
        "command": "command",
        "last_action": "",
        "height_scan": "joint x y offset",
    },
    "randomization": {
        "mass": "bodies factor",
        "inertia": "bodies factor",
        "center_of_mass": "bodies offset_m",
        "friction": "geoms sliding",
        "armature": "joints factor",
        "damping": "joints factor",
        "actuator_gains": "actuators factor",
        "gravity": "offset",
    },
    "reach": {
        "pose_command": "x y z roll pitch yaw",
        "steer": "",
        "position_error": "command position_sensor",
        "orientation_error": "command orientation_sensor",
        "distance": "command position_sensor",
        "angle": "command orientation_sensor",
        "near_position": "command position_sensor tolerance_m",
        "near_orientation": "command orientation_sensor tolerance",
    },
    "rewards": {
        "alive": "",
        "failed": "",
        "action_rate": "",
        "action_energy": "",
        "joint_speed": "joints",
        "sensors_squared": "sensors",
        "joint_deviation": "joints",
        "contacts": "sensors",
    },
    "terminations": {
        "time_out": "",
        "joint_out_of_range": "joint limit",
        "tilted": "sensor limit",
        "illegal_contact": "sensors threshold",
        "out_of_bounds": "joint margin_m",
        "too_low": "joint height_m",
    },
    "velocity": {
        "velocity_command": "speed turn standing_fraction heading_fraction curriculum least",
        "steer": "",
        "approach": "joint gain turn acceleration turn_acceleration",
        "moving": "",
        "track_planar": "command sensor tolerance",
        "track_turn": "command sensor tolerance",
        "planar_error": "command sensor",
        "turn_error": "command sensor",
        "vertical_speed": "sensor",
        "rocking": "sensor",
        "leaning": "sensor",
        "command_level": "reward full share step",
        "terrain_level": "joint command far_m",
    },
}


@pytest.mark.parametrize(
    ("old", "parameters"),
    [(f"mjtrain.env.{module}:{name}", words) for module, names in BEFORE.items() for name, words in names.items()],
)
def test_every_function_of_before_has_a_name_now(old: str, parameters: str) -> None:
    module, _, name = RENAMED_FUNCTIONS[old].partition(":")
    function = getattr(importlib.import_module(module), name)
    assert f"{function.__module__}:{function.__qualname__}" == RENAMED_FUNCTIONS[old]
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    before = [p for p in keywords if p.name in parameters.split()]
    assert [p.name for p in before] == parameters.split()
    assert all(p.default is not p.empty for p in keywords if p not in before), "parameters of later have defaults"


def test_the_table_has_no_other_names() -> None:
    known = {f"mjtrain.env.{module}:{name}" for module in BEFORE for name in BEFORE[module]}
    evaluations = {"mjtrain.play.mode:keep_level", "mjtrain.evaluation.playing.eval_config:keep_level"}
    assert set(RENAMED_FUNCTIONS) - evaluations == known
    assert len({RENAMED_FUNCTIONS[name] for name in known}) == len(known)
    assert {RENAMED_FUNCTIONS[name] for name in evaluations} == {f"{keep_level.__module__}:{keep_level.__qualname__}"}
