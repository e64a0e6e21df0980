"""Where the numbers of observations come from: joints, sensors, commands, clocks, and what no robot measures."""

import os
from pathlib import Path
from typing import Any

from mjtrain.config import CommandTerm, ObservationTerm, to_plain
from mjtrain.deployment.terms import STANDS_BELOW, STOPPED_BELOW
from mjtrain.env.env import Env
from mjtrain.sim.robots.layout import match_names

_MEASURED_BY = {
    "mjtrain.mdp.observations:last_action": "controller",
    "mjtrain.mdp.observations:ctrl_rel": "controller",
    "mjtrain.mdp.observations:command": "command",
    "mjtrain.mdp.observations:height_scan": "estimator",
    "mjtrain.mdp.observations:camera": "camera",
    "mjtrain.mdp.gait:clock": "controller",
    "mjtrain.mdp.root:base_ang_vel": "imu",
    "mjtrain.mdp.root:projected_gravity": "imu",
}
"""What gives a term on a robot, where neither its joints nor its sensors say so."""

_VELOCITY = ["ahead, m/s", "left, m/s", "turn, rad/s"]
_POSITION, _QUATERNION = (
    [f"{axis}, m, world" for axis in "xyz"],
    [f"{axis} of the quaternion, world" for axis in "wxyz"],
)
_POSES = {3: _POSITION, 4: _QUATERNION, 7: [*_POSITION, *_QUATERNION]}


def describe_command(name: str, term: CommandTerm, env: Env) -> dict[str, Any]:
    """Describe what a command means, see docs/deploy-a-policy.md."""
    size, limits_velocity = env.command(name).shape[1], to_plain(term.refine) == "mjtrain.mdp.velocity:approach"
    pose = _POSES.get(size) if term.is_pose else None
    # A policy that is passed on does not tell where files are on this machine.
    term = term.replace(params={key: _without_folder(value) for key, value in term.params.items()})
    return {
        "size": size,
        "columns": _VELOCITY if limits_velocity else pose,
        "rest": [0.0] * size if limits_velocity else [1.0, 0.0, 0.0, 0.0] if pose is _QUATERNION else None,
        "controls": to_plain(term.controls),
        **{
            key: to_plain(getattr(term, key))
            for key in ("func", "params", "resampling_s", "resample_on", "refine", "refine_params", "errors")
        },
    }


def _without_folder(value: Any) -> Any:
    # Path.is_file raises if a text that names no file is too long.
    if isinstance(value, str | Path) and (Path(value).is_absolute() or os.path.isfile(value)):  # noqa: PTH113
        return Path(value).name
    return value


def keep_used(sensors: dict[str, Any], observations: list[dict[str, Any]], commands: dict[str, Any]) -> dict[str, Any]:
    """Return the sensors that observations or errors of commands read, and those that show the up of the base."""
    used = {name for term in observations for name in term.get("sensors", ())}
    used |= {
        value
        for command in commands.values()
        for error in command["errors"].values()
        for value in error["params"].values()
        if isinstance(value, str)
    }
    return {
        name: entry
        for name, entry in sensors.items()
        if name in used or (entry["on_base"] and (entry["type"], entry["object"]) == ("framezaxis", "world"))
    }


def describe_source(term: ObservationTerm, env: Env, sensors: dict[str, Any]) -> dict[str, Any]:
    """Describe what a term reads.

    Returns:
        joints and sensors: the names in the order of the columns, where it reads any; measured_by: what gives them on a
        robot (see `describe_sensors`; also encoders, controller, command, camera, unknown); begins: for a clock.
    """
    found: dict[str, Any] = {}
    params, layout = term.params, env.engine.layout
    if "joints" in params:
        found["joints"] = layout.qpos.match(params["joints"])
    elif single := [value for key, value in params.items() if key == "joint" or key.endswith("_joint")]:
        found["joints"] = single
    named = [value for key, value in params.items() if key == "sensor" or key.endswith("_sensor")]
    patterns = [*params.get("sensors", ()), *(value for value in named if value is not None)]
    if patterns:
        found["sensors"] = match_names(patterns, layout.sensors, "sensor")
    found["measured_by"] = _measured_by(term, found, env, sensors)
    if to_plain(term.func) == "mjtrain.mdp.gait:clock":
        found["begins"] = "phase 0 where the policy begins to act; then it counts control periods"
        found["stands_below"] = STANDS_BELOW
        if params.get("velocity_sensor") is not None:
            found["stopped_below"] = params.get("stopped_below", STOPPED_BELOW)
    return found


def _measured_by(term: ObservationTerm, found: dict[str, Any], env: Env, sensors: dict[str, Any]) -> str:
    if (known := _MEASURED_BY.get(to_plain(term.func))) is not None:
        return known
    if "object" in term.params:
        return "estimator"
    kinds = {sensors[name]["measured_by"] for name in found.get("sensors", ())}
    qpos = env.engine.layout.qpos
    kinds |= {"encoders" if qpos.width(name) == 1 else "estimator" for name in found.get("joints", ())}
    return kinds.pop() if len(kinds) == 1 else "estimator" if "estimator" in kinds else "unknown"
