"""Poses that are added, and the one that is the default pose."""

import math
from typing import Any

import mujoco
import numpy as np

from mjtrain.config import KeyframeConfig, RobotConfig
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.completion.parts import choose, compile_copy, match_one
from mjtrain.sim.robots.read_layout import ON_JOINT, SCALAR_JOINTS, control_columns, neutral_controls, place_controls
from mjtrain.sim.robots.start import list_driven

HOME = "home"
"""Name of the keyframe that is the default pose of a model."""

_SLEW = {mujoco.mjtDyn.mjDYN_PID.value: 1, mujoco.mjtDyn.mjDYN_DCMOTOR.value: 7}
"""Column of actuator_dynprm with the fastest change of a controller's target, which is then a state, by dynamics."""

_WITH_INPUTS = (mujoco.mjtGain.mjGAIN_PID.value, mujoco.mjtGain.mjGAIN_DCMOTOR.value)
"""Types of actuators whose controls are inputs of a controller."""


Controls = dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]
"""Controls and activations by keyframe and actuator."""


def forget_controls(spec: Any) -> Controls:
    """Take the controls and activations out of all keyframes, because other actuators will take these places."""
    if not spec.keys:
        return {}
    model = compile_copy(spec)
    before = {
        model.key(index).name: {
            model.actuator(actuator).name: (
                model.key_ctrl[index, control_columns(model, actuator)].copy(),
                model.key_act[index, activation_columns(model, actuator)].copy(),
            )
            for actuator in range(model.nactuator)
        }
        for index in range(model.nkey)
    }
    for key in spec.keys:
        key.ctrl = []
        key.act = []
    return before


def set_keyframes(spec: Any, config: RobotConfig, controls: Controls) -> None:
    """Add keyframes, and give the one that is the default pose the name home."""
    if config.keyframes or controls:
        model = compile_copy(spec)
        for key in spec.keys:
            if key.name in controls:
                pose = np.array(model.key_qpos[model.key(key.name).id])
                ctrl, act = _hold(model, pose)
                for index in range(model.nactuator):
                    places = control_columns(model, index), activation_columns(model, index)
                    kept = controls[key.name].get(model.actuator(index).name, (ctrl[places[0]], act[places[1]]))
                    ctrl[places[0]], act[places[1]] = kept
                key.ctrl, key.act = ctrl.tolist(), act.tolist()
        for name, keyframe in config.keyframes.items():
            _add(spec, model, name, keyframe, config.names.free_joint)
    if not config.keyframe:
        return
    name = choose("keyframe", config.keyframe, "keyframe", [key.name for key in spec.keys])
    if name != HOME:
        for key in list(spec.keys):
            if key.name == HOME:
                spec.delete(key)
        next(key for key in spec.keys if key.name == name).name = HOME


def _add(spec: Any, model: Any, name: str, config: KeyframeConfig, main: str) -> None:
    flag = f"keyframes.{name}"
    qpos = np.array(model.qpos0)
    columns = {
        model.joint(index).name: int(model.jnt_qposadr[index])
        for index in range(model.njnt)
        if model.jnt_type[index] in SCALAR_JOINTS
    }
    there = [joint for joint in columns if joint]
    for joint, value in _values(f"{flag}.joints", config.joints, "hinge or slide", there).items():
        qpos[columns[joint]] = value
    for field, value in (("height", config.height), ("quat", config.quat)):
        if value is None:
            continue
        if not (model.jnt_type == mujoco.mjtJoint.mjJNT_FREE).any():
            raise RequestError(f"--env.robot.{flag}.{field}: the robot has no free joint; set its joints instead")
        begin = int(model.jnt_qposadr[_find_free_joint(model, config, flag, main)])
        if field == "height":
            qpos[begin + 2] = value
        else:
            qpos[begin + 3 : begin + 7] = np.array(value) / np.linalg.norm(value)
    ctrl, act = _hold(model, qpos)
    actuators = place_controls(model)
    for actuator, value in _values(f"{flag}.ctrl", config.ctrl, "actuator", list(actuators)).items():
        ctrl[actuators[actuator]] = value
    for key in list(spec.keys):
        if key.name == name:
            spec.delete(key)
    spec.add_key(name=name, qpos=qpos.tolist(), ctrl=ctrl.tolist(), act=act.tolist())


def _values(flag: str, by_pattern: dict[str, float], kind: str, there: list[str]) -> dict[str, float]:
    values: dict[str, float] = {}
    patterns: dict[str, str] = {}
    for pattern, value in by_pattern.items():
        if not math.isfinite(value):
            raise RequestError(f"--env.robot.{flag} {pattern} {value:g}: must be finite")
        for name in match_one(flag, pattern, kind, there):
            if values.setdefault(name, value) != value:
                raise RequestError(
                    f"--env.robot.{flag}: {name} is matched by {patterns[name]!r} ({values[name]:g}) and by "
                    f"{pattern!r} ({value:g}); give each {kind} to one expression"
                )
            patterns.setdefault(name, pattern)
    return values


def _find_free_joint(model: Any, config: KeyframeConfig, flag: str, main: str) -> int:
    free = [int(joint) for joint in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)]
    names = [model.joint(joint).name for joint in free]
    if config.free_joint:
        return free[names.index(choose(f"{flag}.free-joint", config.free_joint, "free joint", names))]
    if main in names:
        return free[names.index(main)]
    driven = list_driven(model)
    robots = [joint for joint in free if int(model.jnt_bodyid[joint]) in driven] if len(free) > 1 else free
    if len(robots) == 1:
        return robots[0]
    words = ", ".join(name or "one without a name (see names.free-joint)" for name in names)
    raise RequestError(f"--env.robot.{flag}.free-joint: name the free joint of height and quat; available: {words}")


def activation_columns(model: Any, actuator: int) -> slice:
    """Return the columns of an actuator in act."""
    begin = int(model.actuator_actadr[actuator])
    return slice(begin, begin + int(model.actuator_actnum[actuator])) if begin >= 0 else slice(0, 0)


def _hold(model: Any, qpos: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the controls and activations with which position actuators of joints hold a pose; others are reset."""
    ctrl, act = neutral_controls(model), np.zeros(model.na)
    for index in range(model.nactuator):
        joint = model.actuator_trnid[index, 0]
        if model.actuator_trntype[index] not in ON_JOINT or model.jnt_type[joint] not in SCALAR_JOINTS:
            continue
        gain, bias = model.actuator_gainprm[index, 0], model.actuator_biasprm[index, 1]
        target = model.actuator_gear[model.actuator_outadr[index], 0] * qpos[model.jnt_qposadr[joint]]
        controls, state = control_columns(model, index), activation_columns(model, index)
        dynamics = int(model.actuator_dyntype[index])
        if int(model.actuator_gaintype[index]) in _WITH_INPUTS:
            if not int(model.actuator_ctrlspec[index]) & mujoco.mjtCtrlInput.mjINPUT_POS:
                continue
            ctrl[controls.start] = target = _limit(model, controls.start, target)  # the position is the first input
            if dynamics in _SLEW and model.actuator_dynprm[index, _SLEW[dynamics]] > 0:
                act[state.start] = target
        elif gain > 0 and bias == -gain:
            if dynamics == mujoco.mjtDyn.mjDYN_INTEGRATOR:  # the control is a velocity
                low, high = model.actuator_actrange[index] if model.actuator_actlimited[index] else (-np.inf, np.inf)
                act[state] = np.clip(target, low, high)
            else:
                ctrl[controls] = target = _limit(model, controls.start, target)
                act[state] = target  # of a filter
    return ctrl, act


def _limit(model: Any, control: int, value: float) -> float:
    return float(np.clip(value, *model.actuator_ctrlrange[control])) if model.actuator_ctrllimited[control] else value
