"""Actuators that replace those of the file."""

from typing import Any

import mujoco
import numpy as np

from mjtrain.config import ActuatorConfig
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.completion.parts import match
from mjtrain.sim.robots.read_layout import ON_JOINT, SCALAR_JOINTS

_INPUTS = {
    "position": mujoco.mjtCtrlInput.mjINPUT_POS,
    "velocity": mujoco.mjtCtrlInput.mjINPUT_VEL,
    "motor": mujoco.mjtCtrlInput.mjINPUT_FF,
}
"""What the control of a type is to the driver of a DC motor."""

UNUSED = {"velocity": ("kp",), "motor": ("kp", "kv")}
"""Gains that a type of actuator has no use for."""

_OF_DEFAULTS = (
    "ctrlrange",
    "ctrllimited",
    "forcerange",
    "forcelimited",
    "actrange",
    "actlimited",
    "actdim",
    "actearly",
    "lengthrange",
    "cranklength",
    "damping",
    "armature",
    "delay",
    "nsample",
    "interp",
    "group",
)
"""What the defaults of a file would give an actuator of a config, and neither its type nor its gear sets."""


def replace_actuators(spec: Any, actuators: dict[str, ActuatorConfig]) -> list[str]:
    """Add actuators, and remove those of the file on the same joints; sensors of theirs measure the new ones."""
    added: dict[str, str] = {}
    for label, config in actuators.items():
        flag = f"actuators.{label}"
        _check(flag, config)
        there = [joint.name for joint in spec.joints if joint.type in SCALAR_JOINTS]
        for name in match(f"{flag}.joints", config.joints, "hinge or slide", there):
            if name in added:
                raise RequestError(
                    f"--env.robot.{flag}.joints: {name} is in actuators.{added[name]} too; give each joint to one group"
                )
            added[name] = label
    renamed = _remove(spec, set(added))
    for joint in spec.joints:
        if joint.name in added:
            config = actuators[added[joint.name]]
            _check_free(spec, f"actuators.{added[joint.name]}", joint.name)
            _add(spec, joint, config)
            for field in ("armature", "damping", "frictionloss"):
                value = getattr(config, field)
                if value is not None:
                    _set(joint, field, value)
    for sensor in spec.sensors:
        if sensor.objtype == mujoco.mjtObj.mjOBJ_ACTUATOR:
            sensor.objname = renamed.get(sensor.objname, sensor.objname)
    return list(added)


def _check(flag: str, config: ActuatorConfig) -> None:
    gain = {"position": "kp", "velocity": "kv"}.get(config.type)
    if gain is not None and not getattr(config, gain) > 0:
        raise RequestError(f"--env.robot.{flag}.{gain} {getattr(config, gain):g}: must be more than 0")
    for unused in UNUSED.get(config.type, ()):
        if value := getattr(config, unused):
            raise RequestError(f"--env.robot.{flag}.{unused} {value:g}: type {config.type} ignores it; leave it out")
    if (config.stall_torque is None) != (config.no_load_speed is None):
        given, other = ("stall-torque", "no-load-speed")[:: 1 if config.no_load_speed is None else -1]
        raise RequestError(f"--env.robot.{flag}.{given}: needs {other} too; the two give the limit at each speed")
    for field in ("force_range", "ctrl_range"):
        bounds = getattr(config, field)
        if bounds is not None and not bounds[0] < bounds[1]:
            words = f"{field.replace('_', '-')} {bounds[0]:g} {bounds[1]:g}"
            raise RequestError(f"--env.robot.{flag}.{words}: the first must be less than the second")


def _check_free(spec: Any, flag: str, name: str) -> None:
    if any(actuator.name == name for actuator in spec.actuators):
        raise RequestError(
            f"--env.robot.{flag}: an actuator that does not drive joint {name} has its name; see names.actuators"
        )


def _remove(spec: Any, joints: set[str]) -> dict[str, str]:
    """Remove the actuators of joints, and return the joint of each by its name."""
    removed = {}
    for actuator in list(spec.actuators):
        if actuator.trntype in ON_JOINT and actuator.target in joints:
            removed[actuator.name] = actuator.target
            spec.delete(actuator)
    return removed


def _add(spec: Any, joint: Any, config: ActuatorConfig) -> None:
    actuator = spec.add_actuator(name=joint.name, target=joint.name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    without_defaults = mujoco.MjSpec().add_actuator()
    for field in _OF_DEFAULTS:
        setattr(actuator, field, getattr(without_defaults, field))
    has_range = joint.limited == mujoco.mjtLimited.mjLIMITED_TRUE or (
        joint.limited == mujoco.mjtLimited.mjLIMITED_AUTO and joint.range[0] < joint.range[1]
    )
    inherits = config.type == "position" and config.ctrl_range is None and has_range and config.gear == 1.0
    if config.stall_torque is not None:
        _set_to_dcmotor(actuator, config)
        if inherits:  # MuJoCo lets only its own servos inherit a range
            is_in_degrees = joint.compiler.degree and joint.type == mujoco.mjtJoint.mjJNT_HINGE
            actuator.ctrlrange = np.deg2rad(joint.range) if is_in_degrees else joint.range
            actuator.ctrllimited = mujoco.mjtLimited.mjLIMITED_TRUE
    elif config.type == "position":
        actuator.set_to_position(kp=config.kp, kv=config.kv, inheritrange=inherits)
    elif config.type == "velocity":
        actuator.set_to_velocity(kv=config.kv)
    else:
        actuator.set_to_motor()
    actuator.gear = [config.gear, 0, 0, 0, 0, 0]
    for bounds, name in ((config.ctrl_range, "ctrl"), (config.force_range, "force")):
        if bounds is not None:
            setattr(actuator, f"{name}range", bounds)
            setattr(actuator, f"{name}limited", mujoco.mjtLimited.mjLIMITED_TRUE)


def _set_to_dcmotor(actuator: Any, config: ActuatorConfig) -> None:
    """Make an actuator a motor whose driver delivers what its type asks for, as far as its voltage allows."""
    assert config.stall_torque is not None
    assert config.no_load_speed is not None
    voltage = config.no_load_speed  # as for a motor constant of 1: only ratios matter
    actuator.set_to_dcmotor(
        motorconst=[1.0, 1.0],
        resistance=voltage / config.stall_torque,
        controller=[config.kp, 0.0, config.kv, 0.0, 0.0, voltage],
        ctrlspec=int(_INPUTS[config.type]),
    )


def _set(joint: Any, field: str, value: float) -> None:
    """Set a number of a joint; MuJoCo keeps some of them as the first of several coefficients."""
    before = getattr(joint, field)
    setattr(joint, field, value if isinstance(before, float | int) else [value, *[0.0] * (len(before) - 1)])
