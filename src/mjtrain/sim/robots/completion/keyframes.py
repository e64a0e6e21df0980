"""Poses that are added, and the one that is the default pose."""

from typing import Any

import mujoco
import numpy as np

from mjtrain.config import KeyframeConfig, RobotConfig
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.completion.parts import choose, match_one

HOME = "home"
"""Name of the keyframe that is the default pose of a model."""

_JOINTS = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)


def forget_controls(spec: Any) -> dict[str, dict[str, float]]:
    """Take the controls and activations out of all keyframes, because other actuators will take these places.

    Returns:
        Controls by keyframe and actuator.
    """
    if not spec.keys:
        return {}
    model = spec.compile()
    names = [model.actuator(index).name for index in range(model.nu)]
    before = {
        model.key(index).name: dict(zip(names, model.key_ctrl[index].tolist(), strict=True))
        for index in range(model.nkey)
    }
    for key in spec.keys:
        key.ctrl = []
        key.act = []
    return before


def set_keyframes(spec: Any, config: RobotConfig, controls: dict[str, dict[str, float]]) -> None:
    """Add keyframes, and give the one that is the default pose the name home.

    Args:
        spec: The robot, with all its joints and actuators.
        config: Keyframes by name, and the name of the default pose.
        controls: Controls of keyframes of the file by actuator, if they were taken out.

    Raises:
        RequestError: There is no such keyframe, joint or actuator.
    """
    if config.keyframes or controls:
        model = spec.compile()
        for key in spec.keys:
            if key.name in controls:
                pose = np.array(model.key_qpos[model.key(key.name).id])
                ctrl = _hold(model, pose)
                for index in range(model.nu):
                    ctrl[index] = controls[key.name].get(model.actuator(index).name, ctrl[index])
                key.ctrl = ctrl.tolist()
        for name, keyframe in config.keyframes.items():
            _add(spec, model, name, keyframe)
    if not config.keyframe:
        return
    name = choose("keyframe", config.keyframe, "keyframe", [key.name for key in spec.keys])
    if name != HOME:
        for key in list(spec.keys):
            if key.name == HOME:
                spec.delete(key)
        next(key for key in spec.keys if key.name == name).name = HOME


def _add(spec: Any, model: Any, name: str, config: KeyframeConfig) -> None:
    flag = f"keyframes.{name}"
    qpos = np.array(model.qpos0)
    columns = {
        model.joint(index).name: int(model.jnt_qposadr[index])
        for index in range(model.njnt)
        if mujoco.mjtJoint(model.jnt_type[index]) in _JOINTS
    }
    there = [joint for joint in columns if joint]
    for joint, value in _values(f"{flag}.joints", config.joints, "hinge or slide", there).items():
        qpos[columns[joint]] = value
    free = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
    for field, value in (("height", config.height), ("quat", config.quat)):
        if value is not None and not len(free):
            raise RequestError(f"--env.robot.{flag}.{field}: the robot has no free joint; set its joints instead")
    if config.height is not None:
        qpos[model.jnt_qposadr[free[0]] + 2] = config.height
    if config.quat is not None:
        begin = model.jnt_qposadr[free[0]] + 3
        qpos[begin : begin + 4] = np.array(config.quat) / np.linalg.norm(config.quat)
    ctrl = _hold(model, qpos)
    actuators = [model.actuator(index).name for index in range(model.nu)]
    for actuator, value in _values(f"{flag}.ctrl", config.ctrl, "actuator", actuators).items():
        ctrl[actuators.index(actuator)] = value
    for key in list(spec.keys):
        if key.name == name:
            spec.delete(key)
    spec.add_key(name=name, qpos=qpos.tolist(), ctrl=ctrl.tolist())


def _values(flag: str, by_pattern: dict[str, float], kind: str, there: list[str]) -> dict[str, float]:
    """Return the value of each part.

    Raises:
        RequestError: An expression matches nothing, or two that give different values match the same part.
    """
    values: dict[str, float] = {}
    patterns: dict[str, str] = {}
    for pattern, value in by_pattern.items():
        for name in match_one(flag, pattern, kind, there):
            if values.setdefault(name, value) != value:
                raise RequestError(
                    f"--env.robot.{flag}: {name} is matched by {patterns[name]!r} ({values[name]:g}) and by "
                    f"{pattern!r} ({value:g}); give each {kind} to one expression"
                )
            patterns.setdefault(name, pattern)
    return values


def _hold(model: Any, qpos: np.ndarray) -> np.ndarray:
    """Return the controls with which position actuators of joints hold a pose, zero for other actuators."""
    ctrl = np.zeros(model.nu)
    for index in range(model.nu):
        joint = model.actuator_trnid[index, 0]
        on_joint = model.actuator_trntype[index] == mujoco.mjtTrn.mjTRN_JOINT
        if on_joint and mujoco.mjtJoint(model.jnt_type[joint]) in _JOINTS:
            gain, bias = model.actuator_gainprm[index, 0], model.actuator_biasprm[index, 1]
            if gain > 0 and bias == -gain:
                ctrl[index] = model.actuator_gear[index, 0] * qpos[model.jnt_qposadr[joint]]
                if model.actuator_ctrllimited[index]:
                    ctrl[index] = np.clip(ctrl[index], *model.actuator_ctrlrange[index])
    return ctrl
