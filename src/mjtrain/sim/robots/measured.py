"""What the joints and sensors of a model measure, and its limbs: feet, tools, and the actuators that move them."""

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np

from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.read_layout import BODIES, ON_JOINT, SCALAR_JOINTS, name_sensor_type, read_gains
from mjtrain.sim.robots.start import find_base, make_start

_OWN_FRAME = "the frame of the object"
_REFERENCE = "the frame of the reference"
_SENSORS: dict[str, tuple[str, str | None, str]] = {
    "accelerometer": ("m/s^2", _OWN_FRAME, "imu"),
    "gyro": ("rad/s", _OWN_FRAME, "imu"),
    "magnetometer": ("T", _OWN_FRAME, "imu"),
    "velocimeter": ("m/s", _OWN_FRAME, "estimator"),
    "force": ("N", _OWN_FRAME, "force sensor"),
    "torque": ("N m", _OWN_FRAME, "force sensor"),
    "touch": ("N", None, "contact sensor"),
    "contact": ("as the model says", None, "contact sensor"),
    "rangefinder": ("m", None, "rangefinder"),
    "jointpos": ("rad or m", None, "encoders"),
    "jointvel": ("rad/s or m/s", None, "encoders"),
    "ballquat": ("quaternion (w, x, y, z)", None, "encoders"),
    "ballangvel": ("rad/s", _OWN_FRAME, "encoders"),
    "actuatorpos": ("rad or m", None, "encoders"),
    "actuatorvel": ("rad/s or m/s", None, "encoders"),
    "actuatorfrc": ("N m or N", None, "motor currents"),
    "jointactuatorfrc": ("N m or N", None, "motor currents"),
    "framepos": ("m", _REFERENCE, "estimator"),
    "framequat": ("quaternion (w, x, y, z)", _REFERENCE, "imu"),
    "framexaxis": ("unit vector", _REFERENCE, "imu"),
    "frameyaxis": ("unit vector", _REFERENCE, "imu"),
    "framezaxis": ("unit vector", _REFERENCE, "imu"),
    "framelinvel": ("m/s", _REFERENCE, "estimator"),
    "frameangvel": ("rad/s", _REFERENCE, "estimator"),
    "framelinacc": ("m/s^2", _REFERENCE, "estimator"),
    "frameangacc": ("rad/s^2", _REFERENCE, "estimator"),
    "subtreecom": ("m", "the world's frame", "estimator"),
    "subtreelinvel": ("m/s", "the world's frame", "estimator"),
    "subtreeangmom": ("N m s", "the world's frame", "estimator"),
}
"""Unit, frame and what measures it on a robot, by type. An orientation is an IMU's where it is that of the base, and
follows from encoders where it is that of a link."""

_SMALLEST = 0.1
"""Singular values of the Jacobian below this fraction of the largest are left out: a straight leg cannot get longer."""

_SETS_NO_POSITION = "does not set the position of a hinge or a slide"


def describe_joints(model: mujoco.MjModel) -> dict[str, dict[str, Any]]:
    """Return type and range of each named joint, in the order of the model. The range is None without one."""
    joints = [model.joint(index) for index in range(model.njnt) if model.joint(index).name]
    return {
        joint.name: {
            "type": mujoco.mjtJoint(int(joint.type[0])).name.removeprefix("mjJNT_").lower(),
            "range": [float(bound) for bound in joint.range] if joint.limited[0] else None,
        }
        for joint in joints
    }


def describe_sensors(model: mujoco.MjModel) -> dict[str, dict[str, Any]]:
    """Return what each named sensor measures, in the order of the model.

    Returns:
        By name: type (the MJCF element), size, unit, frame (None for a scalar), object and its object_type, reference
        (None for the world), on_base (whether it is on a base that moves freely), and measured_by, what gives such a
        reading on a robot: imu, encoders, contact sensor, force sensor, rangefinder, motor currents, or estimator,
        where no sensor does.
    """
    return {
        model.sensor(index).name: _describe_sensor(model, index)
        for index in range(model.nsensor)
        if model.sensor(index).name
    }


def _describe_sensor(model: mujoco.MjModel, index: int) -> dict[str, Any]:
    kind = name_sensor_type(model, index)
    unit, frame, measured_by = _SENSORS.get(kind, ("as the model says", None, "unknown"))
    part, part_type = int(model.sensor_objid[index]), int(model.sensor_objtype[index])
    other, other_type = int(model.sensor_refid[index]), int(model.sensor_reftype[index])
    is_world = other < 0 or not other_type or (other == 0 and other_type in BODIES)
    if frame == _REFERENCE and is_world:
        frame = "the world's frame"
    on_base = _is_on_base(model, part, part_type) or (not is_world and _is_on_base(model, other, other_type))
    return {
        "type": kind,
        "size": int(model.sensor_dim[index]),
        "unit": unit,
        "frame": frame,
        "object": _name(model, part, part_type),
        "object_type": mujoco.mjtObj(part_type).name.removeprefix("mjOBJ_").lower(),
        "reference": None if is_world else _name(model, other, other_type),
        "on_base": on_base,
        "measured_by": measured_by,
    }


def _name(model: mujoco.MjModel, part: int, kind: int) -> str | None:
    kind = int(mujoco.mjtObj.mjOBJ_BODY) if kind in BODIES else kind
    return None if part < 0 else mujoco.mj_id2name(model, kind, part)


def find_sensor_body(model: mujoco.MjModel, sensor: str) -> int | None:
    """Return the body that a sensor is on; None for one that measures something else."""
    index = model.sensor(sensor).id
    return find_body(model, int(model.sensor_objid[index]), int(model.sensor_objtype[index]))


def are_in_line(model: mujoco.MjModel, body: int, other: int) -> bool:
    """Whether one of two bodies hangs on the other, directly or by others."""
    return hangs_on(model, body, other) or hangs_on(model, other, body)


def hangs_on(model: mujoco.MjModel, body: int, ancestor: int) -> bool:
    """Whether a body is another one, or hangs on it, directly or by others."""
    while body not in (0, ancestor):
        body = int(model.body_parentid[body])
    return body == ancestor


def find_body(model: mujoco.MjModel, part: int, kind: int) -> int | None:
    """Return the body of a site, geom or body, by the number of its `mujoco.mjtObj`; None for parts of other types."""
    if kind == int(mujoco.mjtObj.mjOBJ_SITE):
        return int(model.site_bodyid[part])
    if kind == int(mujoco.mjtObj.mjOBJ_GEOM):
        return int(model.geom_bodyid[part])
    return part if kind in BODIES else None


def _is_on_base(model: mujoco.MjModel, part: int, kind: int) -> bool:
    """Whether a part is on the base of the robot, or on what is fixed to it."""
    body, base = find_body(model, part, kind), find_base(model)
    return body is not None and base >= 0 and bool(model.body_weldid[body] == model.jnt_bodyid[base])


def find_feet(model: mujoco.MjModel, sensors: Sequence[str], actuators: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Read the feet from a model, by the inverse of their Jacobian.

    Args:
        sensors: framepos sensors of the feet.
        actuators: Position actuators of hinges and slides.

    Returns:
        Their positions in the default pose in the frame of the base, in m. Shape (num_feet, 3). And the change of each
        control per displacement of each foot along x, y and z of the base, in units of the control per m. Shape
        (3 * num_feet, num_actuators).
    """
    joints, gears = find_joints(model, actuators)
    data = make_start(model)
    mujoco.mj_forward(model, data)
    bodies = [find_end(model, sensor) for sensor in sensors]
    base = model.body_rootid[bodies[0]]
    turned = data.xmat[base].reshape(3, 3)
    points = np.array([data.sensor(sensor).data for sensor in sensors])
    parts = []
    for body, point in zip(bodies, points, strict=True):
        jacobian = np.zeros((3, model.nv))
        mujoco.mj_jac(model, data, jacobian, None, point, body)
        parts.append(turned.T @ jacobian[:, model.jnt_dofadr[joints]])
    inverse = np.linalg.pinv(np.concatenate(parts), rcond=_SMALLEST)
    return (points - data.xpos[base]) @ turned, (gears[:, None] * inverse).T


def find_joints(model: mujoco.MjModel, actuators: Sequence[str]) -> tuple[list[int], np.ndarray]:
    """Return the joint that each position actuator moves, and its gear: the control is the gear times the position."""
    joints = []
    for name in actuators:
        index = model.actuator(name).id
        kp, is_servo = read_gains(model, index)[1], model.actuator_ctrlspec[index] == mujoco.mjtCtrlInput.mjINPUT_POS
        if not (kp > 0 and (is_servo or kp == model.actuator_gainprm[index, 0])):
            raise RequestError(f"actuator {name}: {_SETS_NO_POSITION}")
        joint = find_driven_joint(model, name)
        if joint in joints:
            raise RequestError(
                f"actuator {name}: sets the position of joint {model.joint(joint).name}, as another does"
            )
        joints.append(joint)
    return joints, np.array([model.actuator(name).gear[0] for name in actuators])


def find_driven_joint(model: mujoco.MjModel, actuator: str) -> int:
    """Return the hinge or slide that an actuator drives, by its index."""
    row = model.actuator(actuator)
    joint = int(row.trnid[0])
    if row.trntype[0] not in ON_JOINT or model.jnt_type[joint] not in SCALAR_JOINTS:
        raise RequestError(f"actuator {actuator}: {_SETS_NO_POSITION}")
    return joint


def find_tool(
    model: mujoco.MjModel, position_sensor: str, orientation_sensor: str
) -> tuple[int, np.ndarray, np.ndarray]:
    """Read from a model where a tool is in the frame of its body, by a framepos and a framequat sensor on it.

    Returns:
        The row of its body; where its position is measured, in the frame of the body, in m, shape (3,); and the
        quaternion (w, x, y, z) from the frame whose orientation is measured to that of the body, shape (4,).
    """
    body = find_end(model, position_sensor)
    for sensor in (position_sensor, orientation_sensor):
        if model.sensor(sensor).reftype[0] != mujoco.mjtObj.mjOBJ_UNKNOWN:
            raise RequestError(f"sensor {sensor}: is relative to a part of the robot; give one in the world's frame")
    if find_sensor_body(model, orientation_sensor) != body:
        raise RequestError(f"sensor {orientation_sensor}: is not on the same body as sensor {position_sensor}")
    data = make_start(model)
    mujoco.mj_forward(model, data)
    place = data.xmat[body].reshape(3, 3).T @ (data.sensor(position_sensor).data - data.xpos[body])
    back, turn = np.zeros(4), np.zeros(4)
    mujoco.mju_negQuat(back, data.xquat[body])
    mujoco.mju_mulQuat(turn, back, data.sensor(orientation_sensor).data)
    return body, place, turn


def find_end(model: mujoco.MjModel, sensor: str) -> int:
    """Return the body whose framepos sensor this is."""
    body = find_sensor_body(model, sensor)
    if not body or model.sensor(sensor).type[0] != mujoco.mjtSensor.mjSENS_FRAMEPOS:
        raise RequestError(f"sensor {sensor}: is not a framepos sensor of a part of the robot")
    return body
