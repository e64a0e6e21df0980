"""Where the limbs of a robot end, and which position actuators move them."""

from collections.abc import Sequence

import mujoco
import numpy as np

from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.measured import find_sensor_body
from mjtrain.sim.robots.read_layout import ON_JOINT, SCALAR_JOINTS
from mjtrain.sim.robots.start import make_start

_SMALLEST = 0.1
"""Singular values of the Jacobian below this fraction of the largest are left out: a straight leg cannot get longer."""

_SETS_NO_POSITION = "does not set the position of a hinge or a slide"


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
        actuator = model.actuator(name)
        if not actuator.biasprm[1] == -actuator.gainprm[0] < 0:
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
