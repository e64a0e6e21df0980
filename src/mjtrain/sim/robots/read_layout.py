"""From a compiled model to its layout: where named parts are in the state, and what their columns mean."""

import mujoco
import numpy as np
import torch

from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.layout import CONTACT_WIDTHS, MODEL_FIELDS, Columns, Layout, SensorKind
from mjtrain.sim.robots.start import find_home

# Numbers as in the arrays of a model, because enumerations do not equal numpy's numbers in a tuple.
SCALAR_JOINTS = (mujoco.mjtJoint.mjJNT_HINGE.value, mujoco.mjtJoint.mjJNT_SLIDE.value)
ON_JOINT = (mujoco.mjtTrn.mjTRN_JOINT.value, mujoco.mjtTrn.mjTRN_JOINTINPARENT.value)
BODIES = (mujoco.mjtObj.mjOBJ_BODY.value, mujoco.mjtObj.mjOBJ_XBODY.value)
_WIDTHS = {mujoco.mjtJoint.mjJNT_FREE: (7, 6), mujoco.mjtJoint.mjJNT_BALL: (4, 3)}
"""Columns in qpos and in qvel of joints that have more than one."""

_INPUTS = [(name, bit) for name, bit in mujoco.mjtCtrlInput.__members__.items() if name != "mjINPUT_NONE"]
"""MuJoCo orders the controls of an actuator by these bits."""


def make_layout(model: mujoco.MjModel, device: torch.device | str, dtype: torch.dtype) -> Layout:
    """Read the layout of a compiled model. Parts without a name are left out."""
    qpos, qvel, joint_range, quaternions = {}, {}, {}, []
    for index in range(model.njnt):
        name, position, velocity = model.joint(index).name, model.jnt_qposadr[index], model.jnt_dofadr[index]
        position_width, velocity_width = _WIDTHS.get(mujoco.mjtJoint(model.jnt_type[index]), (1, 1))
        if position_width > 1:  # the quaternion is last
            quaternions.append(slice(int(position) + position_width - 4, int(position) + position_width))
        if not name:
            continue
        qpos[name] = slice(position, position + position_width)
        qvel[name] = slice(velocity, velocity + velocity_width)
        if position_width == 1 and model.jnt_limited[index]:
            low, high = model.jnt_range[index]
            joint_range[name] = (float(low), float(high))
    scalar = frozenset(name for name, place in qpos.items() if place.stop - place.start == 1)
    sensors = {
        model.sensor(index).name: slice(model.sensor_adr[index], model.sensor_adr[index] + model.sensor_dim[index])
        for index in range(model.nsensor)
        if model.sensor(index).name
    }
    sensor_kinds = {name: _sensor_kind(model, model.sensor(name).id) for name in sensors}
    actuators = {model.actuator(index).name: index for index in range(model.nactuator)}
    if "" in actuators:
        raise RequestError(_describe_nameless(model, actuators[""]))
    home = find_home(model)
    ctrl_range = np.where(
        model.actuator_ctrllimited[:, None] & clamps_controls(model), model.actuator_ctrlrange, [-np.inf, np.inf]
    )

    def default(key: object, otherwise: object) -> torch.Tensor:
        return torch.tensor(otherwise if home < 0 else key[home], dtype=dtype, device=device)  # pyright: ignore[reportIndexIssue]

    return Layout(
        timestep_s=float(model.opt.timestep),
        qpos=Columns("joint", qpos, device, scalar=scalar),
        qvel=Columns("joint", qvel, device, scalar=scalar),
        actuators=actuators,
        controls=place_controls(model),
        inputs=tuple(
            (model.actuator(index).name, word) for index in range(model.nactuator) for word in name_inputs(model, index)
        ),
        sensors=Columns("sensor", sensors, device),
        sensor_kinds=sensor_kinds,
        bodies={model.body(index).name: index for index in range(1, model.nbody) if model.body(index).name},
        geoms={model.geom(index).name: index for index in range(model.ngeom) if model.geom(index).name},
        home=home,
        default_qpos=default(model.key_qpos, model.qpos0),
        default_qvel=default(model.key_qvel, [0.0] * model.nv),
        default_ctrl=default(model.key_ctrl, neutral_controls(model)),
        ctrl_range=torch.tensor(ctrl_range, dtype=dtype, device=device),
        joint_range=joint_range,
        gain_kinds={name: torch.from_numpy(kinds).to(device) for name, kinds in _find_gains(model).items()},
        velocities=tuple(_describe_velocity(model, column) for column in range(model.nv)),
        quaternions=tuple(quaternions),
        nominal={name: torch.tensor(_field(model, name), device=device, dtype=torch.float64) for name in MODEL_FIELDS},
    )


def _find_gains(model: mujoco.MjModel) -> dict[str, np.ndarray]:
    """Return `Layout.gain_kinds`."""
    gain, bias = model.actuator_gainprm, model.actuator_biasprm
    of_gain, of_bias = np.ones(gain.shape, dtype=np.uint8), np.ones(bias.shape, dtype=np.uint8)
    is_linear = np.isin(model.actuator_biastype, (mujoco.mjtBias.mjBIAS_AFFINE.value, mujoco.mjtBias.mjBIAS_SO3.value))
    of_bias[is_linear & (bias[:, 1] != 0), 2] = 2
    for kinds, types, muscle in (
        (of_gain, model.actuator_gaintype, mujoco.mjtGain.mjGAIN_MUSCLE.value),
        (of_bias, model.actuator_biastype, mujoco.mjtBias.mjBIAS_MUSCLE.value),
    ):
        kinds[types == muscle] = 0  # lengths and velocities at which it is strong
        kinds[types == muscle, 2:4] = 1  # its peak force, or the scale from which that follows
    is_motor = model.actuator_gaintype == mujoco.mjtGain.mjGAIN_DCMOTOR.value
    of_gain[is_motor], of_bias[is_motor] = 0, 0
    of_gain[is_motor, 4:7] = 1  # kp, ki and kd of its controller
    of_gain[is_motor & (gain[:, 4] != 0), 6] = 2
    return {"actuator_gainprm": of_gain, "actuator_biasprm": of_bias}


def _describe_velocity(model: mujoco.MjModel, column: int) -> tuple[str, str]:
    index = int(model.dof_jntid[column])
    kind = mujoco.mjtJoint(model.jnt_type[index])
    is_linear = kind == mujoco.mjtJoint.mjJNT_SLIDE or (
        kind == mujoco.mjtJoint.mjJNT_FREE and column - model.jnt_dofadr[index] < 3
    )
    return model.joint(index).name or f"number {index}", "m/s" if is_linear else "rad/s"


def _sensor_kind(model: mujoco.MjModel, index: int) -> SensorKind:
    kind = name_sensor_type(model, index)
    part = int(model.sensor_objid[index])
    if kind == "jointactuatorfrc":
        return SensorKind(type=kind, joint=model.joint(part).name)
    if kind == "actuatorfrc" and model.actuator_trntype[part] in ON_JOINT:
        return SensorKind(type=kind, joint=model.joint(model.actuator_trnid[part, 0]).name)
    if kind == "contact":
        reported, _, num = model.sensor_intprm[index]
        return SensorKind(
            type=kind, data=tuple(name for bit, name in enumerate(CONTACT_WIDTHS) if reported & 1 << bit), num=int(num)
        )
    reference, reference_type = int(model.sensor_refid[index]), int(model.sensor_reftype[index])
    is_world = reference < 0 or (reference == 0 and reference_type in BODIES)
    return SensorKind(type=kind, is_relative=bool(reference_type) and not is_world)


def name_sensor_type(model: mujoco.MjModel, index: int) -> str:
    """Return the MJCF element of a sensor."""
    kind = mujoco.mjtSensor(model.sensor_type[index]).name.removeprefix("mjSENS_").lower()
    return kind.replace("actfrc", "actuatorfrc")  # jointactuatorfrc and tendonactuatorfrc in MJCF


def _describe_nameless(model: mujoco.MjModel, index: int) -> str:
    """Say which actuator has no name; `completion` names those that drive something that has one."""
    kind = mujoco.mjtTrn(model.actuator_trntype[index]).name.removeprefix("mjTRN_").lower()
    target = model.actuator_trnid[index, 0]
    driven = repr(model.joint(target).name) if kind.startswith("joint") else f"number {target}"
    return (
        f"actuator {index} of {model.nactuator} has no name (it drives {kind} {driven}); give it one in the MJCF file"
    )


def place_controls(model: mujoco.MjModel) -> dict[str, slice]:
    """Return `Layout.controls`; the name of an actuator counts more than that of another one's control."""
    blocks, single = {}, {}
    for index in range(model.nactuator):
        name, words, columns = model.actuator(index).name, name_inputs(model, index), control_columns(model, index)
        if words:
            blocks[name] = columns
        if len(words) > 1:
            single |= {f"{name}:{word}": slice(column, column + 1) for column, word in enumerate(words, columns.start)}
    return {**single, **blocks} if single else blocks


def clamps_controls(model: mujoco.MjModel) -> bool:
    """Whether MuJoCo keeps controls within their ranges."""
    return not model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_CLAMPCTRL


def control_columns(model: mujoco.MjModel, actuator: int) -> slice:
    """Return the columns of an actuator in ctrl."""
    begin = int(model.actuator_ctrladr[actuator])
    return slice(begin, begin + int(model.actuator_ctrlnum[actuator]))


def name_inputs(model: mujoco.MjModel, index: int) -> list[str | None]:
    """Return a word for each control of an actuator, as in its attribute input, or a number; None for a single one."""
    count, spec = int(model.actuator_ctrlnum[index]), int(model.actuator_ctrlspec[index])
    if count == 1:
        return [None]
    is_input = model.actuator_gaintype[index] != mujoco.mjtGain.mjGAIN_SO3  # there it is the kind of coordinates
    words: list[str | None] = [
        name.removeprefix("mjINPUT_").lower() for name, bit in _INPUTS if is_input and spec & int(bit)
    ]
    return words if len(words) == count else [str(number) for number in range(count)]


def neutral_controls(model: mujoco.MjModel) -> np.ndarray:
    """Return the controls of a model that was just reset, as `mujoco.mj_resetCtrl` sets them. Shape (nu,)."""
    ctrl = np.zeros(model.nu)
    is_quaternion = (model.actuator_gaintype == mujoco.mjtGain.mjGAIN_SO3) & (
        model.actuator_ctrlspec == mujoco.mjtCtrlChart.mjCHART_QUAT
    )
    ctrl[model.actuator_ctrladr[is_quaternion]] = 1.0
    return ctrl


def read_gains(model: mujoco.MjModel, index: int) -> tuple[float, float, float]:
    """Return bias, kp and kd of an actuator's own force."""
    if model.actuator_gaintype[index] == mujoco.mjtGain.mjGAIN_DCMOTOR:
        return 0.0, float(model.actuator_gainprm[index, 4]), float(model.actuator_gainprm[index, 6])
    if model.actuator_biastype[index] != mujoco.mjtBias.mjBIAS_AFFINE:
        return 0.0, 0.0, 0.0
    bias, stiffness, damping = map(float, model.actuator_biasprm[index, :3])
    return bias, -stiffness, -damping


def _field(model: mujoco.MjModel, name: str) -> np.ndarray:
    return model.opt.gravity if name == "gravity" else getattr(model, name)
