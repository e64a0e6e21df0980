"""The keys that controllers for mjlab and BeyondMimic read from an ONNX file.

Each value is text: items divided by commas, and the numbers of an item by semicolons. The names are those of
`mjlab.rl.exporter_utils` (1.6.0) and of BeyondMimic's `whole_body_tracking/utils/exporter.py` (cd65172).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_BY_FUNCTION = {
    "mjtrain.mdp.observations:joint_velocities": "joint_vel",
    "mjtrain.mdp.observations:joint_pos_rel": "joint_pos",
    "mjtrain.mdp.observations:last_action": "actions",
    "mjtrain.mdp.observations:command": "command",
    "mjtrain.mdp.root:base_lin_vel": "base_lin_vel",
    "mjtrain.mdp.root:base_ang_vel": "base_ang_vel",
    "mjtrain.mdp.root:projected_gravity": "projected_gravity",
}
_BY_SENSOR = {"velocimeter": "base_lin_vel", "gyro": "base_ang_vel"}
_OF_MOTION = {
    "mjtrain.mdp.tracking:motion_joint_targets": "command",
    "mjtrain.mdp.tracking:motion_anchor_pos_b": "motion_anchor_pos_b",
    "mjtrain.mdp.tracking:motion_anchor_ori_b": "motion_anchor_ori_b",
}
_ROW_BY_ROW = (0, 2, 4, 1, 3, 5)
"""Where they have each number of two axes of a rotation matrix: they write it row by row, mjtrain axis by axis."""


@dataclass(frozen=True, kw_only=True)
class FieldView:
    """A policy that tracks a motion, as controllers for BeyondMimic see it: values as they compute them, unscaled.

    Each column of the policy's input is clip(scale * (obs[column] - zero), low, high).
    """

    described: dict[str, Any]
    """Its metadata, for `make_field_keys`."""

    inputs: list[tuple[int, float, float, float, float]]
    """Column, scale, zero, low and high, for each column of the policy's input."""


def view_with_motion(described: dict[str, Any]) -> FieldView:
    """Return how controllers for BeyondMimic see a policy, from its metadata with `motion`."""
    joints, motion = _joint_names(described), described["motion"]
    home = [described["default_pose"][joint][0] for joint in joints] + [0.0] * len(joints)
    terms, inputs = [], []
    for term, (name, sign) in zip(described["observations"], _name_all(described, joints, motion), strict=True):
        known = name == _name_of_motion(term, motion)
        begin, end = term["columns"]
        width = (end - begin) // term["history"]
        order = _ROW_BY_ROW if known and name == "motion_anchor_ori_b" else range(width)
        zeros = home if known and name == "command" else [0.0] * width
        low, high = term["clip"] or (-math.inf, math.inf)
        for first in range(begin, end, width):
            inputs += [
                (first + place, sign * term["scale"], zero, low, high) for place, zero in zip(order, zeros, strict=True)
            ]
        plain = {"func": "", "params": {}, "scale": 1.0, "clip": None}  # no func: the name is theirs
        terms.append({"name": name, **plain, "history": term["history"]})
    commands = ["motion" if name == motion["command"] else name for name in described["commands"]]
    return FieldView(described={**described, "observations": terms, "commands": commands}, inputs=inputs)


def make_field_keys(described: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the keys that are true of a policy, from its metadata; and why each that is left out would be false.

    `joint_names` are its hinges and slides.
    """
    joints = _joint_names(described)
    keys = {
        "run_path": str(described["run"] or described["task"]),
        "joint_names": join(joints),
        "default_joint_pos": join([described["default_pose"][name][0] for name in joints]),
        "command_names": join(list(described["commands"])),
        **_describe_observations(described, joints),
    }
    if "motion" in described:
        keys |= {
            "anchor_body_name": described["motion"]["anchor_body"],
            "body_names": join(described["motion"]["bodies"]),
        }
    left_out = {}
    why = _why_not_gains(described["actions"], joints)
    if why is None:
        by_joint = {row["joint"]: row for row in described["actions"]}
        keys["joint_stiffness"] = join([by_joint[name]["kp"] for name in joints])
        keys["joint_damping"] = join([by_joint[name]["kd"] for name in joints])
    else:
        left_out |= dict.fromkeys(("joint_stiffness", "joint_damping"), why)
    why = why or _why_not_scale(described["actions"], joints, described["default_pose"])
    if why is None:
        keys["action_scale"] = join([row["scale"] for row in described["actions"]])
        keys["action_clip"] = join([row["clip"] for row in described["actions"]])
    else:
        left_out["action_scale"] = why
    return keys, left_out


def join(values: Sequence[Any]) -> str:
    """Write a list as controllers read it, without rounding."""
    return ",".join(";".join(map(str, value)) if isinstance(value, list | tuple) else str(value) for value in values)


def _joint_names(described: dict[str, Any]) -> list[str]:
    return [name for name, entry in described["joints"].items() if entry["type"] in ("hinge", "slide")]


def _describe_observations(described: dict[str, Any], joints: list[str]) -> dict[str, str]:
    """Write the terms. In their pipeline the clip comes before the scale, so the bounds are divided by it."""
    terms = described["observations"]
    named = _name_all(described, joints)
    scales = [sign * term["scale"] for (_, sign), term in zip(named, terms, strict=True)]
    clips = [
        sorted(bound / scale for bound in term["clip"]) if term["clip"] is not None else (-math.inf, math.inf)
        for term, scale in zip(terms, scales, strict=True)
    ]
    return {
        "observation_names": join([name for name, _ in named]),
        "observation_terms_scale": join(scales),
        "observation_terms_clip": join(clips),
        "observation_terms_history_length": join([0 if term["history"] == 1 else term["history"] for term in terms]),
        "observation_terms_flatten_history_dim": join([1] * len(terms)),
        "observation_history_lengths": join([term["history"] for term in terms]),
    }


def _name_all(
    described: dict[str, Any], joints: list[str], motion: dict[str, Any] | None = None
) -> list[tuple[str, int]]:
    """Return name and sign of each term, see `_name`; terms that would share a name keep their own."""
    terms = described["observations"]
    named = [_name(term, described, joints) for term in terms]
    if motion is not None:
        of_motion = [_name_of_motion(term, motion) for term in terms]
        named = [pair if known is None else (known, 1) for known, pair in zip(of_motion, named, strict=True)]
    names = [name for name, _ in named]
    return [
        (name, sign) if names.count(name) == 1 or name == term["name"] else (_own_name(term), 1)
        for (name, sign), term in zip(named, terms, strict=True)
    ]


def _name_of_motion(term: dict[str, Any], motion: dict[str, Any]) -> str | None:
    """Return the name under which controllers know an observation of the motion; None for others."""
    params = term["params"]
    is_next = params.get("command") == motion["command"] and params.get("ahead", 1) in (1, [1])
    return _OF_MOTION.get(term["func"]) if is_next else None


def _name(term: dict[str, Any], described: dict[str, Any], joints: list[str]) -> tuple[str, int]:
    """Return the name under which controllers know a term, and -1 where it has the opposite sign; else its own."""
    function, params = term["func"], term["params"]
    if function == "mjtrain.mdp.observations:sensor":
        sensor = described["sensors"][params["sensor"]]
        if sensor["on_base"] and sensor["type"] in _BY_SENSOR:
            return _BY_SENSOR[sensor["type"]], 1
        if sensor["on_base"] and (sensor["type"], sensor["object"]) == ("framezaxis", "world"):
            return "projected_gravity", -1
        return _own_name(term), 1
    if function.startswith("mjtrain.mdp.root:") and params.get("joint", "") != described["base"]:
        return _own_name(term), 1  # of an object, or of a planar root, which has several joints
    if function.startswith("mjtrain.mdp.observations:joint_") and term.get("joints") != joints:
        return _own_name(term), 1
    return _BY_FUNCTION.get(function) or _own_name(term), 1


def _own_name(term: dict[str, Any]) -> str:
    """Return the name of a term, marked where controllers would take it for something else."""
    is_theirs = term["name"] in _BY_FUNCTION.values() and term["func"]
    return f"own_{term['name']}" if is_theirs else term["name"]


def _why_not_gains(actions: list[dict[str, Any]], joints: list[str]) -> str | None:
    """Say why kp and kd of each joint do not describe the actuators, up to their limits; None if they do."""
    for row in actions:
        if row["formula"] == "none":
            return f"actuator {row['actuator']} follows no linear formula: {row['why']}"
    if sorted(row["joint"] for row in actions) != sorted(joints):
        return "the actions do not drive each joint once"
    return None


def _why_not_scale(actions: list[dict[str, Any]], joints: list[str], pose: dict[str, list[float]]) -> str | None:
    """Say why target = default_joint_pos + action_scale * action is false; None if it is true."""
    if [row["joint"] for row in actions] != joints:
        return "the order of the actions is not that of joint_names"
    for row in actions:
        name = row["actuator"]
        if row["relative"]:
            return f"actions add to the last control of actuator {name}"
        if "base" in row:
            return f"actions of actuator {name} are added to {row['base']}"
        if not row["kp"] or not math.isclose(row["gain"], row["kp"], rel_tol=1e-6) or row["bias"]:
            return f"the control of actuator {name} is not the position of its joint"
        if not math.isclose(row["offset"], pose[row["joint"]][0], abs_tol=1e-6):
            return f"action 0 of actuator {name} is not the default pose"
    return None
