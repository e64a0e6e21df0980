"""Moving a tool to a pose: the command, and the errors of the tool.

The command is a position in m and a quaternion (w, x, y, z), both in the world's frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mjtrain.config.limits import MORE_THAN_0, ORIENTATION, POSITION, Angles, Bounds
from mjtrain.env.sampling import uniform
from mjtrain.runtime.deferred_imports import torch
from mjtrain.sim import rotations

if TYPE_CHECKING:
    from mjtrain.env.env import Env


def pose_command(
    env: Env,
    *,
    x: Bounds,
    y: Bounds,
    z: Bounds,
    roll: Angles,
    pitch: Angles,
    yaw: Angles,
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
    x, y, z, roll, pitch, yaw = values.expand(env.num_envs, 6).unbind(dim=1)
    return torch.cat([torch.stack([x, y, z], dim=1), rotations.from_euler(roll, pitch, yaw)], dim=1)


def position_error(env: Env, *, command: str, position_sensor: Annotated[str, POSITION]) -> torch.Tensor:
    """Vector from the tool to the commanded position, in m, in the world's frame. Shape (num_envs, 3)."""
    return env.command(command)[:, :3] - env.sensor(position_sensor)


def orientation_error(env: Env, *, command: str, orientation_sensor: Annotated[str, ORIENTATION]) -> torch.Tensor:
    """Rotation from the tool to the commanded orientation as axis times angle, in rad, in the world's frame.

    Shape (num_envs, 3).
    """
    tool = env.sensor(orientation_sensor)
    return rotations.rotation_vector(rotations.multiply(env.command(command)[:, 3:], rotations.conjugate(tool)))


def distance(env: Env, *, command: str, position_sensor: Annotated[str, POSITION]) -> torch.Tensor:
    """Distance of the tool from the commanded position, in m. Shape (num_envs,)."""
    return position_error(env, command=command, position_sensor=position_sensor).norm(dim=1)


def angle(env: Env, *, command: str, orientation_sensor: Annotated[str, ORIENTATION]) -> torch.Tensor:
    """Angle between the tool and the commanded orientation, in rad. Shape (num_envs,)."""
    return orientation_error(env, command=command, orientation_sensor=orientation_sensor).norm(dim=1)


def near_position(
    env: Env, *, command: str, position_sensor: Annotated[str, POSITION], tolerance_m: Annotated[float, MORE_THAN_0]
) -> torch.Tensor:
    """One at the commanded position, 1 - tanh(distance / tolerance_m) away from it. Shape (num_envs,).

    Args:
        command: Name of the pose command.
        position_sensor: A framepos sensor on the tool, in m.
        tolerance_m: Scale of the distance, in m.
    """
    return 1 - torch.tanh(distance(env, command=command, position_sensor=position_sensor) / tolerance_m)


def near_orientation(
    env: Env, *, command: str, orientation_sensor: Annotated[str, ORIENTATION], tolerance: Annotated[float, MORE_THAN_0]
) -> torch.Tensor:
    """One at the commanded orientation, 1 - tanh(angle / tolerance) away from it. Shape (num_envs,).

    Args:
        command: Name of the pose command.
        orientation_sensor: A framequat sensor on the tool.
        tolerance: Scale of the angle, in rad.
    """
    return 1 - torch.tanh(angle(env, command=command, orientation_sensor=orientation_sensor) / tolerance)
