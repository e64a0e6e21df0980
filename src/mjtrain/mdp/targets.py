"""Reaching targets in a plane, or in the space of the joints: commands, and how far the robot is from them.

A planar target is (x, y) in m in the world's frame. A joint target has a position in m or rad for each joint; the
parameter `joints` of its errors holds regular expressions over these joints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjtrain.config.limits import Angles, Bounds, Fraction, PositionSensor, Positive
from mjtrain.env.sampling import uniform
from mjtrain.runtime.deferred_imports import torch
from mjtrain.runtime.errors import RequestError

if TYPE_CHECKING:
    from mjtrain.env.env import Env


def planar_command(
    env: Env, *, radius: Bounds, angle: Angles = (-3.1416, 3.1416), center: tuple[float, float] = (0.0, 0.0)
) -> torch.Tensor:
    """Draw targets in a ring or a sector of the world's xy plane, as in dm_control's reacher. Shape (num_envs, 2).

    Args:
        radius: Bounds of the distance from the centre, in m, uniform.
        angle: Bounds of the direction from the centre, in rad from the world's x, uniform.
        center: Centre of the ring, in m.
    """
    distance, direction = uniform(env, radius), uniform(env, angle)
    return torch.stack([center[0] + distance * direction.cos(), center[1] + distance * direction.sin()], dim=1)


def joint_command(env: Env, *, joints: tuple[str, ...], fraction: Fraction = 1.0) -> torch.Tensor:
    """Draw targets for slides and hinges from the middle of their ranges in the MJCF file, in m or rad.

    Shape (num_envs, num_joints).

    Args:
        joints: Regular expressions over slides and hinges that have a range.
        fraction: How much of each range is used, from 0 to 1.
    """
    low, high = env.engine.layout.joint_limits(joints)
    return (low + high) / 2 + fraction * (high - low) * uniform(env, (-0.5, 0.5), len(low))


def steer(env: Env, values: torch.Tensor) -> torch.Tensor:
    """Command a planar or a joint target by hand: the values of the controls are the target. Shape (num_envs, size)."""
    return values.expand(env.num_envs, -1)


def planar_error(env: Env, *, command: str, position_sensor: PositionSensor) -> torch.Tensor:
    """Vector from the tool to the planar target, in m, in the world's frame. Shape (num_envs, 2)."""
    target = env.command(command)
    if target.shape[1] not in (2, 3, 7) and not env.is_recorded:
        raise RequestError(f"command {command} has {target.shape[1]} columns; one with a position has 2, 3 or 7")
    return target[:, :2] - env.sensor(position_sensor)[:, :2]


def planar_distance(env: Env, *, command: str, position_sensor: PositionSensor) -> torch.Tensor:
    """Distance of the tool from the planar target, in m. Shape (num_envs,)."""
    return planar_error(env, command=command, position_sensor=position_sensor).norm(dim=1)


def near_planar(env: Env, *, command: str, position_sensor: PositionSensor, tolerance_m: Positive) -> torch.Tensor:
    """One at the planar target, 1 - tanh(distance / tolerance_m) away from it. Shape (num_envs,)."""
    return 1 - torch.tanh(planar_distance(env, command=command, position_sensor=position_sensor) / tolerance_m)


def joint_error(env: Env, *, command: str, joints: tuple[str, ...]) -> torch.Tensor:
    """Difference of the joint target from the positions of the joints, in m or rad. Shape (num_envs, num_joints)."""
    wanted, positions = env.command(command), env.qpos(joints)
    if wanted.shape != positions.shape:
        raise RequestError(f"command {command} is for {wanted.shape[1]} joints, and joints for {positions.shape[1]}")
    return wanted - positions


def joint_distance(env: Env, *, command: str, joints: tuple[str, ...]) -> torch.Tensor:
    """Euclidean distance from the joint target, in m or rad. Shape (num_envs,)."""
    return joint_error(env, command=command, joints=joints).norm(dim=1)


def near_joint(env: Env, *, command: str, joints: tuple[str, ...], tolerance: Positive) -> torch.Tensor:
    """One at the joint target, 1 - tanh(distance / tolerance) away from it. Shape (num_envs,).

    Args:
        tolerance: Scale of the distance, in m or rad.
    """
    return 1 - torch.tanh(joint_distance(env, command=command, joints=joints) / tolerance)
