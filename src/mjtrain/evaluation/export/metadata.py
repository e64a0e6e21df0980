"""Metadata of an exported policy: the meaning of its inputs and outputs."""

import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mjtrain.config import CameraConfig, CommandTerm, ObservationTerm, to_plain
from mjtrain.deployment.steering import APPROACH
from mjtrain.deployment.terms import STANDS_BELOW, STOPPED_BELOW
from mjtrain.env.base import TaskEnv
from mjtrain.env.cameras import list_channels, list_streams
from mjtrain.env.catalog import shared_name
from mjtrain.env.env import Env
from mjtrain.evaluation.export.field_keys import make_field_keys, view_with_motion
from mjtrain.learning.learner import Policy
from mjtrain.mdp.observations import camera
from mjtrain.mdp.reference import reference_of
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.sim.robots.layout import match_names
from mjtrain.sim.robots.measured import describe_joints, describe_sensors
from mjtrain.sim.robots.robot import describe_actuators
from mjtrain.sim.robots.start import find_base

FORMAT = 3  # 1: no relative actions; 2: kp and kd were not those of the joint where there was a gear, and no gain
"""Increased whenever a reader of the older format would misread the newer one."""

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


def describe_policy(run: TrainedRun, env: TaskEnv, policy: Policy) -> dict[str, Any]:
    """Describe a policy's observations and actions in plain values."""
    described = {
        "format": FORMAT,
        "mjtrain_version": version("mjtrain"),
        "mujoco_version": version("mujoco"),
        "task": shared_name(run.task),
        "run": None if run.run_dir is None else run.run_dir.name,
        "checkpoint": None if run.checkpoint is None else run.checkpoint.name,
        "iteration": policy.iteration,
        "control_period_s": env.step_dt,
    }
    if not isinstance(env, Env):
        return described | _describe_foreign(env, policy)
    described |= _describe_worlds(run, env, policy)
    images = list_image_inputs(policy)
    if not images:
        described |= _describe_motion(described, env)
    described["keys_left_out"] = make_field_keys(described)[1]
    return described | ({"images": [_describe_images(run, env, policy, group) for group in images]} if images else {})


def describe_actions(env: Env) -> list[dict[str, Any]]:
    """Describe the actions and their actuators, as docs/deploy-a-policy.md says.

    Where an actuator has controls that no action drives, what these contribute is part of its bias.
    """
    layout, described = env.engine.layout, describe_actuators(env.engine.model)
    columns = {(name, word): name if word is None else f"{name}:{word}" for name, word in layout.inputs}
    driven = {(row["actuator"], row.get("input")) for row in env.action_table}
    constant = dict.fromkeys(layout.actuators, 0.0)
    for column, (name, word) in enumerate(layout.inputs):
        gain = described[columns[name, word]]["gain"]
        if (name, word) not in driven and gain is not None:
            constant[name] += gain * layout.default_ctrl[column].item()
    rows = []
    for row in env.action_table:
        entry = described[columns[row["actuator"], row.get("input")]]
        bias = None if entry["bias"] is None else entry["bias"] + constant[row["actuator"]]
        rows.append({**to_plain(row), **entry, "bias": bias})
        own = [column for column, (name, _) in enumerate(layout.inputs) if name == row["actuator"]]
        if entry["formula"] == "none" and len(own) > 1:
            inputs = [layout.inputs[column] for column in own]
            values = layout.default_ctrl[own].tolist()
            rows[-1]["held_controls"] = [
                None if key in driven else value for key, value in zip(inputs, values, strict=True)
            ]
        if row.get("base") == "motion_controls" and row["base_params"].get("share") == 0:  # the default pose always
            del rows[-1]["base"], rows[-1]["base_params"]
            rows[-1]["offset"] = layout.default_ctrl[entry["ctrl_index"]].item()
    return rows


def list_image_inputs(policy: Policy) -> list[str]:
    """Return the image groups that a policy reads, in the order of its inputs."""
    return [group for group, shape in policy.inputs.items() if len(shape) > 1]


def _describe_foreign(env: TaskEnv, policy: Policy) -> dict[str, Any]:
    described, begin, images = [], 0, list_image_inputs(policy)
    for group, (size, *_) in policy.inputs.items():
        if group not in images:
            described.append({"name": group, "columns": [begin, begin + size]})
            begin += size
    seen = {"images": [_describe_input(policy, group) for group in images]} if images else {}
    return {"observations": described, "num_actions": env.num_actions, **seen}


def _describe_worlds(run: TrainedRun, env: Env, policy: Policy) -> dict[str, Any]:
    config, layout, model = run.own_env, env.engine.layout, env.engine.model
    images, sensors = list_image_inputs(policy), describe_sensors(model)
    groups = [group for group in policy.inputs if group not in images]
    observations = _describe_observations(run, env, groups, sensors)
    commands = {name: _describe_command(name, term, env) for name, term in config.commands.items()}
    return {
        "physics_step_s": layout.timestep_s,
        "observations": observations,
        "actions": describe_actions(env),
        "default_pose": {name: layout.default_qpos[columns].tolist() for name, columns in layout.qpos.items()},
        "commands": commands,
        "base": _name_base(model),
        "ground": config.terrain.kind,
        "joints": describe_joints(model),
        "sensors": _keep_used(sensors, observations, commands),
    }


def _name_base(model: Any) -> str | None:
    base = find_base(model)
    return model.joint(base).name or None if base >= 0 else None


def _describe_motion(described: dict[str, Any], env: Env) -> dict[str, Any]:
    for name, command in described["commands"].items():
        if command["func"] == "mjtrain.mdp.tracking:motion_command":
            reference, anchor = reference_of(env, name), command["params"]["anchor_body"]
            motion = {
                "command": name,
                "anchor_body": anchor,
                "bodies": list(dict.fromkeys((*reference.body_names, anchor))),
                "frames": len(reference.qpos),
                "first_frames": reference.firsts.tolist(),
            }
            view = view_with_motion({**described, "motion": motion})
            return {"motion": {**motion, "keys_left_out": make_field_keys(view.described)[1]}}
    return {}


def _describe_observations(
    run: TrainedRun, env: Env, groups: list[str], sensors: dict[str, Any]
) -> list[dict[str, Any]]:
    described, begin = [], 0
    for group in groups:
        for name, width in env.observation_widths(group).items():
            term = run.own_env.observations[group][name]
            source = {"noise": term.noise, **_describe_source(term, env, sensors)}
            row = {"columns": [begin, begin + width], **_describe_term(term), **source}
            # A robot reports one reading under a name.
            same = [other for other in described if name == other["name"]]
            differs = any((row["func"], row["params"]) != (other["func"], other["params"]) for other in same)
            described.append({"name": f"{group}.{name}" if differs else name, **row})
            begin += width
    return described


def _describe_images(run: TrainedRun, env: Env, policy: Policy, group: str) -> dict[str, Any]:
    """Describe an image group: a separate input."""
    terms, begin = [], 0
    for name, channels in env.observation_widths(group).items():
        term = run.own_env.observations[group][name]
        described = {"name": name, "channels": [begin, begin + channels], **_describe_term(term)}
        if term.func is camera:
            key = term.params["camera"]
            described["frame"] = _describe_frame(key, run.own_env.cameras[key], term.params)
        terms.append(described)
        begin += channels
    return {**_describe_input(policy, group), "terms": terms}


def _describe_input(policy: Policy, group: str) -> dict[str, Any]:
    dtype = str(policy.dtypes[group]).removeprefix("torch.")
    return {"input": group, "dtype": dtype, "shape": list(policy.inputs[group])}


def _describe_frame(name: str, camera: CameraConfig, params: dict[str, Any]) -> dict[str, Any]:
    """Describe one frame of a camera, as `mdp.observations.camera` gives it."""
    return {
        "camera": camera.camera or name,
        "streams": list_streams(camera, params),
        "channels": list_channels(camera, params),
        "width": camera.width,
        "height": camera.height,
        "interval": camera.interval,
        "near_m": camera.near_m,
        "far_m": camera.far_m,
        "classes": {
            label: {"index": index, "patterns": list(patterns)}
            for index, (label, patterns) in enumerate(camera.classes.items(), start=1)
        },
        "shadows": camera.shadows,
        "geom_groups": list(camera.geom_groups),
    }


def _describe_term(term: ObservationTerm) -> dict[str, Any]:
    """Return what a term is, without what only makes training robust."""
    return {key: value for key, value in to_plain(term).items() if key not in ("noise", "shift")}


def _describe_command(name: str, term: CommandTerm, env: Env) -> dict[str, Any]:
    """Describe what a command means, see docs/deploy-a-policy.md."""
    size, limits_velocity = env.command(name).shape[1], to_plain(term.refine) == APPROACH
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


def _keep_used(sensors: dict[str, Any], observations: list[dict[str, Any]], commands: dict[str, Any]) -> dict[str, Any]:
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


def _describe_source(term: ObservationTerm, env: Env, sensors: dict[str, Any]) -> dict[str, Any]:
    """Return joints and sensors in the order of the columns, what gives them on a robot, and where a clock begins."""
    found: dict[str, Any] = {}
    params, layout = term.params, env.engine.layout
    if params.get("joints") is not None:
        found["joints"] = layout.qpos.match(params["joints"])
    elif single := [value for key, value in params.items() if key == "joint" or key.endswith("_joint")]:
        found["joints"] = single
    named = [value for key, value in params.items() if key == "sensor" or key.endswith("_sensor")]
    patterns = [*(params.get("sensors") or ()), *(re.escape(value) for value in named if value is not None)]
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
    qpos, joints, base = env.engine.layout.qpos, found.get("joints", ()), _name_base(env.engine.model)
    if "object" in term.params or any(qpos.width(name) > 1 and name != base for name in joints):
        return "estimator"
    if (known := _MEASURED_BY.get(to_plain(term.func))) is not None:
        return known
    kinds = {sensors[name]["measured_by"] for name in found.get("sensors", ())}
    kinds |= {"encoders" if qpos.width(name) == 1 else "estimator" for name in joints}
    return kinds.pop() if len(kinds) == 1 else "estimator" if "estimator" in kinds else "unknown"
