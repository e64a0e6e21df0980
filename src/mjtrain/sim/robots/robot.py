"""Facts of the model that a controller of the real robot needs."""

from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from mjtrain.config import EnvConfig
from mjtrain.runtime.errors import count
from mjtrain.sim.robots.model import load_model
from mjtrain.sim.robots.read_layout import ON_JOINT, SCALAR_JOINTS, clamps_controls, name_inputs, read_gains

_DYNAMICS = {
    mujoco.mjtDyn.mjDYN_INTEGRATOR: "it integrates its control",
    mujoco.mjtDyn.mjDYN_FILTER: "it filters its control",
    mujoco.mjtDyn.mjDYN_FILTEREXACT: "it filters its control",
    mujoco.mjtDyn.mjDYN_MUSCLE: "it is a muscle",
    mujoco.mjtDyn.mjDYN_DCMOTOR: "it is a DC motor",
    mujoco.mjtDyn.mjDYN_PID: "it has an integral or a limit of slew",
    mujoco.mjtDyn.mjDYN_USER: "its dynamics are those of a callback",
}
_FIXED, _AFFINE, _PID = mujoco.mjtGain.mjGAIN_FIXED, mujoco.mjtGain.mjGAIN_AFFINE, mujoco.mjtGain.mjGAIN_PID
_DCMOTOR = mujoco.mjtGain.mjGAIN_DCMOTOR


def describe_actuators(model: mujoco.MjModel) -> dict[str, dict[str, Any]]:
    """Describe the actuators of the robot, in plain values, by name in the order of the model.

    Where `formula` is "linear", MuJoCo's torque on the joint (force, on a slide) is

        clip(gain * ctrl + bias - kp * position - kd * velocity, *torque_range)

    with ctrl within control_range; the torques of all actuators of a joint add up, and are then clipped to
    joint_torque_range. Where `formula` is "limited", the torque is clipped before that to

        -stall_torque * (1 + velocity / no_load_speed), stall_torque * (1 - velocity / no_load_speed)

    Where `formula` is "none", `why` says why, and gain, bias, kp and kd are None.

    Returns:
        For each control, under its name in `Layout.controls`: ctrl_index, its column in MuJoCo's ctrl; the joint (None
        where it drives none); formula and why; gain in N m per unit of the control, bias in N m, kp in N m/rad, kd in
        N m s/rad (for a slide N, N/m and N s/m); gear, control_range and force_range of the model, torque_range and
        joint_torque_range in N m or N, each None where there is none; stall_torque in N m or N and no_load_speed in
        rad/s or m/s of the joint, where the formula is "limited"; delay_s, the actuator's own delay. An actuator
        with several controls has an entry for each one, in which only ctrl_index, gain and control_range differ: gain *
        ctrl is the sum over these.
    """
    found = {}
    for index in range(model.nactuator):
        name, words, described = model.actuator(index).name, name_inputs(model, index), _describe(model, index)
        for offset, (word, gain) in enumerate(zip(words, _gains(model, index) or [None] * len(words), strict=True)):
            column = int(model.actuator_ctrladr[index]) + offset
            bounds = _range(
                clamps_controls(model) and model.actuator_ctrllimited[column], model.actuator_ctrlrange[column]
            )
            own = {"ctrl_index": column, "gain": gain, "control_range": bounds}
            found[name if word is None else f"{name}:{word}"] = described | own
    return found


def _describe(model: mujoco.MjModel, index: int) -> dict[str, Any]:
    """Return what all controls of an actuator share; see `describe_actuators`."""
    joint = int(model.actuator_trnid[index, 0]) if model.actuator_trntype[index] in ON_JOINT else None
    why = _why_not_linear(model, index)
    gear = float(model.actuator_gear[model.actuator_outadr[index], 0])
    bias, kp, kd = read_gains(model, index)
    is_servo = why is None and _is_dc_servo(model, index)
    force_range = _range(model.actuator_forcelimited[index], model.actuator_forcerange[index])
    return {
        "joint": None if joint is None else model.joint(joint).name,
        "formula": "none" if why else "limited" if is_servo else "linear",
        **({} if why is None else {"why": why}),
        **(_describe_curve(model, index, abs(gear)) if is_servo else {}),
        "bias": None if why else gear * bias + 0.0,
        "kp": None if why else gear**2 * kp + 0.0,
        "kd": None if why else gear**2 * kd + 0.0,
        "gear": gear,
        "force_range": force_range,
        "torque_range": None if why or force_range is None else sorted(gear * bound for bound in force_range),
        "joint_torque_range": None
        if joint is None
        else _range(model.jnt_actfrclimited[joint], model.jnt_actfrcrange[joint]),
        "delay_s": float(model.actuator_delay[index]),
    }


def _describe_curve(model: mujoco.MjModel, index: int, gear: float) -> dict[str, float]:
    """Return the limit that falls with the speed, of a joint behind a gear."""
    resistance, constant, voltage = (float(model.actuator_gainprm[index, column]) for column in (0, 1, 7))
    return {"stall_torque": gear * constant * voltage / resistance, "no_load_speed": voltage / constant / gear}


def _is_dc_servo(model: mujoco.MjModel, index: int) -> bool:
    """Whether an actuator is a DC motor without states whose driver gives what kp and kd ask for, up to a voltage."""
    gain, inputs = model.actuator_gainprm[index], int(model.actuator_ctrlspec[index])
    others = gain[[2, 3, 5, 8, 9]], model.actuator_biasprm[index], model.actuator_dynprm[index]
    return (
        model.actuator_gaintype[index] == _DCMOTOR
        and inputs in range(1, int(mujoco.mjtCtrlInput.mjINPUT_VOLTAGE))
        and gain[7] > 0
        and not any(values.any() for values in others)
    )


def _why_not_linear(model: mujoco.MjModel, index: int) -> str | None:
    """Say why no linear formula gives the torque of an actuator on one joint; None if one does."""
    gain = mujoco.mjtGain(model.actuator_gaintype[index])
    bias = mujoco.mjtBias(model.actuator_biastype[index])
    if model.actuator_trntype[index] not in ON_JOINT:
        kind = mujoco.mjtTrn(model.actuator_trntype[index]).name.removeprefix("mjTRN_").lower()
        return f"it drives a {kind}, not a joint"
    joint = int(model.actuator_trnid[index, 0])
    if model.jnt_type[joint] not in SCALAR_JOINTS:
        return f"it drives a {mujoco.mjtJoint(model.jnt_type[joint]).name.removeprefix('mjJNT_').lower()} joint"
    if model.actuator_plugin[index] >= 0:
        return "it is a plugin"
    if _is_dc_servo(model, index):
        return _why_not_here(model, index, joint)
    if model.actuator_dyntype[index] != mujoco.mjtDyn.mjDYN_NONE:
        return _DYNAMICS[mujoco.mjtDyn(model.actuator_dyntype[index])]
    if gain not in (_FIXED, _PID) and (gain != _AFFINE or model.actuator_gainprm[index, 1:3].any()):
        return "its gain depends on position or velocity" if gain == _AFFINE else "its gain is not a number"
    if bias not in (mujoco.mjtBias.mjBIAS_NONE, mujoco.mjtBias.mjBIAS_AFFINE):
        return "its bias is not linear"
    return _why_not_here(model, index, joint)


def _why_not_here(model: mujoco.MjModel, index: int, joint: int) -> str | None:
    """Say why the model, and not the actuator, keeps a linear formula from giving the torque; None if it does not."""
    group = int(model.actuator_group[index])
    in_group = 0 <= group < 31 and model.opt.disableactuator & (1 << group)
    if in_group or model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_ACTUATION:
        return "the model disables it"
    if model.jnt_actgravcomp[joint] and model.body_gravcomp.any():
        return "its joint adds gravity compensation"
    return None


def _gains(model: mujoco.MjModel, index: int) -> list[float] | None:
    """Return the torque on the joint for a unit of each control of an actuator; None where the formula is none."""
    if _why_not_linear(model, index) is not None:
        return None
    gear = float(model.actuator_gear[model.actuator_outadr[index], 0])
    if mujoco.mjtGain(model.actuator_gaintype[index]) not in (_PID, _DCMOTOR):
        return [gear * float(model.actuator_gainprm[index, 0])]
    inputs, spec = mujoco.mjtCtrlInput, int(model.actuator_ctrlspec[index])
    _, kp, kd = read_gains(model, index)
    by_input = ((inputs.mjINPUT_POS, kp), (inputs.mjINPUT_VEL, kd), (inputs.mjINPUT_FF, 1.0))
    return [gear * gain for bit, gain in by_input if spec & int(bit)]


def _range(limited: Any, bounds: Any) -> list[float] | None:
    return [float(bound) for bound in bounds] if limited else None


def save_model(config: EnvConfig, path: Path) -> None:
    """Write robot and ground as a compiled model, which the same version of MuJoCo loads without other files."""
    model = load_model(config)
    content = np.empty(mujoco.mj_sizeModel(model), dtype=np.uint8)
    mujoco.mj_saveModel(model, None, content)  # MuJoCo does not say whether it could write a file
    path.write_bytes(content.tobytes())


def summarise_model(model: mujoco.MjModel) -> str:
    """Return a line about the size of a model."""
    counts = (
        count(model.nbody - 1, "body", "bodies"),
        count(model.njnt, "joint"),
        count(model.nactuator, "actuator"),
        count(model.nsensor, "sensor"),
        count(model.nkey, "keyframe"),
    )
    return f"{', '.join(counts)}; {model.body_mass.sum():.4g} kg"
