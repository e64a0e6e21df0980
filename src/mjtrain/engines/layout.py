"""Names of a model and where they lie in the state."""

from dataclasses import dataclass

import mujoco
import torch

from mjtrain.errors import RequestError


class Columns(dict[str, slice]):
    """Columns by name; asking for a name that is not there says which are."""

    def __init__(self, kind: str, columns: dict[str, slice]) -> None:
        super().__init__(columns)
        self._kind = kind

    def __missing__(self, name: str) -> slice:
        raise RequestError(f"the robot has no {self._kind} named {name!r}; it has {', '.join(self) or 'none'}")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Addresses of named joints, actuators and sensors, and the model's own constants."""

    timestep_s: float
    """Physics step, in seconds."""

    qpos: Columns
    """Columns of each joint in qpos."""

    qvel: Columns
    """Columns of each joint in qvel."""

    actuators: dict[str, int]
    """Column of each actuator in ctrl, in the order of the model."""

    sensors: Columns
    """Columns of each sensor in sensordata."""

    default_qpos: torch.Tensor
    """Positions of keyframe "home" if the model has it, else its reference pose. Shape (nq,)."""

    default_qvel: torch.Tensor
    """Velocities of the same. Shape (nv,)."""


def make_layout(model: mujoco.MjModel, device: torch.device | str, dtype: torch.dtype) -> Layout:
    """Read the layout off a compiled model; joints and sensors without a name are left out.

    Raises:
        RequestError: An actuator has no name.
    """
    qpos_width = {
        mujoco.mjtJoint.mjJNT_FREE: (7, 6),
        mujoco.mjtJoint.mjJNT_BALL: (4, 3),
        mujoco.mjtJoint.mjJNT_SLIDE: (1, 1),
        mujoco.mjtJoint.mjJNT_HINGE: (1, 1),
    }
    qpos, qvel = {}, {}
    for index in range(model.njnt):
        joint = model.joint(index)
        if not joint.name:
            continue
        position_width, velocity_width = qpos_width[mujoco.mjtJoint(model.jnt_type[index])]
        qpos[joint.name] = slice(model.jnt_qposadr[index], model.jnt_qposadr[index] + position_width)
        qvel[joint.name] = slice(model.jnt_dofadr[index], model.jnt_dofadr[index] + velocity_width)
    sensors = {
        model.sensor(index).name: slice(model.sensor_adr[index], model.sensor_adr[index] + model.sensor_dim[index])
        for index in range(model.nsensor)
        if model.sensor(index).name
    }
    home = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, "home")
    actuators = {model.actuator(index).name: index for index in range(model.nu)}
    if "" in actuators:
        raise RequestError("an actuator of the robot has no name; give each one a name in the MJCF file")
    return Layout(
        timestep_s=float(model.opt.timestep),
        qpos=Columns("joint", qpos),
        qvel=Columns("joint", qvel),
        actuators=actuators,
        sensors=Columns("sensor", sensors),
        default_qpos=torch.tensor(model.qpos0 if home < 0 else model.key_qpos[home], dtype=dtype, device=device),
        default_qvel=torch.zeros(model.nv, dtype=dtype, device=device)
        if home < 0
        else torch.tensor(model.key_qvel[home], dtype=dtype, device=device),
    )
