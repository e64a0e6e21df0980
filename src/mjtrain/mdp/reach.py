"""Moving a tool to a pose: the command, the errors of the tool, and a controller.

The command is a position in m and a quaternion (w, x, y, z), both in the world's frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjtrain.config.limits import Angles, Bounds, OrientationSensor, PositionSensor, Positive
from mjtrain.env.sampling import commanded_orientation, commanded_position, uniform
from mjtrain.runtime.deferred_imports import torch
from mjtrain.sim import rotations

if TYPE_CHECKING:
    from mjtrain.env.env import Env


def pose_command(
    env: Env, *, x: Bounds, y: Bounds, z: Bounds, roll: Angles, pitch: Angles, yaw: Angles
) -> torch.Tensor:
    """Draw poses from a box. Shape (num_envs, 7).

    Args:
        x: Bounds, in m.
        y: Bounds, in m.
        z: Bounds, in m.
        roll: Bounds of the rotation about x, which is applied first, in rad.
        pitch: Bounds of the rotation about the world's y, in rad.
        yaw: Bounds of the rotation about the world's z, which is applied last, in rad.
    """
    position = torch.stack([uniform(env, bounds) for bounds in (x, y, z)], dim=1)
    return torch.cat([position, rotations.from_euler(*(uniform(env, bounds) for bounds in (roll, pitch, yaw)))], dim=1)


def steer(env: Env, values: torch.Tensor) -> torch.Tensor:
    """Command x, y, z (m), roll, pitch, yaw (rad) by hand, as a draw of `pose_command`. Shape (num_envs, 7)."""
    values = values.expand(env.num_envs, 6)
    return torch.cat([values[:, :3], rotations.from_euler(*values[:, 3:].unbind(dim=1))], dim=1)


def position_error(env: Env, *, command: str, position_sensor: PositionSensor) -> torch.Tensor:
    """Vector from the tool to the commanded position, in m, in the world's frame. Shape (num_envs, 3)."""
    return commanded_position(env, command) - env.sensor(position_sensor)


def orientation_error(env: Env, *, command: str, orientation_sensor: OrientationSensor) -> torch.Tensor:
    """Rotation from the tool to the commanded orientation as axis times angle, in rad, in the world's frame.

    Shape (num_envs, 3).
    """
    tool = env.sensor(orientation_sensor)
    return rotations.rotation_vector(rotations.multiply(commanded_orientation(env, command), rotations.conjugate(tool)))


def distance(env: Env, *, command: str, position_sensor: PositionSensor) -> torch.Tensor:
    """Distance of the tool from the commanded position, in m. Shape (num_envs,)."""
    return position_error(env, command=command, position_sensor=position_sensor).norm(dim=1)


def angle(env: Env, *, command: str, orientation_sensor: OrientationSensor) -> torch.Tensor:
    """Angle between the tool and the commanded orientation, in rad. Shape (num_envs,)."""
    return orientation_error(env, command=command, orientation_sensor=orientation_sensor).norm(dim=1)


def near_position(env: Env, *, command: str, position_sensor: PositionSensor, tolerance_m: Positive) -> torch.Tensor:
    """One at the commanded position, 1 - tanh(distance / tolerance_m) away from it. Shape (num_envs,)."""
    return 1 - torch.tanh(distance(env, command=command, position_sensor=position_sensor) / tolerance_m)


def near_orientation(
    env: Env, *, command: str, orientation_sensor: OrientationSensor, tolerance: Positive
) -> torch.Tensor:
    """One at the commanded orientation, 1 - tanh(angle / tolerance) away from it. Shape (num_envs,).

    Args:
        tolerance: Scale of the angle, in rad.
    """
    return 1 - torch.tanh(angle(env, command=command, orientation_sensor=orientation_sensor) / tolerance)


def inverse_kinematics(
    env: Env,
    *,
    command: str,
    position_sensor: PositionSensor,
    orientation_sensor: OrientationSensor,
    damping: Positive = 0.1,
) -> torch.Tensor:
    """Actions that move a tool to the commanded pose, by the damped inverse of its Jacobian; a controller.

    Each env step sets the joints to where a step of damped least squares leads from their present positions. As in
    Wampler, "Manipulator Inverse Kinematic Solutions Based on Vector Formulations and Damped Least-Squares Methods",
    IEEE Transactions on Systems, Man, and Cybernetics, 1986. It knows neither limits of joints nor obstacles, and does
    not make up for gravity. Joints that do not move the tool stay where they are. Shape (num_envs, num_actions).

    Args:
        damping: A larger one moves less where the arm is close to a singular pose; 1 m counts as 1 rad.

    Raises:
        RequestError: An action does not set the position of a joint, or the sensors are not framepos and framequat in
            the world's frame on the same body.
    """
    from mjtrain.env.actions import actions_that_set, find_position_actuators
    from mjtrain.sim.robots.kinematics import ForwardKinematics
    from mjtrain.sim.robots.measured import find_joints, find_tool  # imports MuJoCo, which a help page does not need

    model, qpos = env.engine.model, env.state.qpos
    joints, gears = find_joints(model, find_position_actuators(env.action_table))
    row, *measured = find_tool(model, position_sensor, orientation_sensor)
    kinematics = ForwardKinematics(model, env.device, qpos.dtype)
    jacobian = kinematics.find_jacobian(qpos, row, model.jnt_dofadr[joints].tolist())
    place, turn = (torch.tensor(part, dtype=qpos.dtype, device=env.device) for part in measured)
    body = env.bodies.select(row)
    arm = rotations.rotate(body.quaternions, place.expand(env.num_envs, 3))
    swept = torch.linalg.cross(jacobian[:, 3:], arm[:, :, None], dim=1)
    jacobian = torch.cat([jacobian[:, :3] + swept, jacobian[:, 3:]], dim=1)
    wanted, facing = commanded_position(env, command), commanded_orientation(env, command)
    turned = rotations.multiply(body.quaternions, turn.expand(env.num_envs, 4))
    turning = rotations.rotation_vector(rotations.multiply(facing, rotations.conjugate(turned)))
    error = torch.cat([wanted - body.positions - arm, turning], dim=1)
    damped = jacobian @ jacobian.mT + damping**2 * torch.eye(6, dtype=error.dtype, device=env.device)
    step = (jacobian.mT @ torch.linalg.solve(damped, error[:, :, None])).squeeze(2)
    positions = qpos[:, model.jnt_qposadr[joints].tolist()] + step
    return actions_that_set(env.action_table, positions * torch.tensor(gears, dtype=qpos.dtype, device=env.device))
