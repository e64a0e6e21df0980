"""The parts of commands.

A place is a position in m, a quaternion (w, x, y, z), or both, in the world's frame. A velocity is (ahead, left, turn)
in m/s and rad/s, in the frame of the body. Further columns, such as a heading, come after these. Runs may have recorded
commands of other widths, from before there were these checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjtrain.runtime.errors import RequestError

if TYPE_CHECKING:
    from mjtrain.env.env import Env
    from mjtrain.runtime.deferred_imports import torch


def commanded_position(env: Env, command: str) -> torch.Tensor:
    """Return the position of a command, in m. Shape (num_envs, 3)."""
    place = env.command(command)
    if place.shape[1] not in (3, 7) and not env.is_recorded:
        raise RequestError(f"command {command} has {place.shape[1]} columns; one with a position has 3 or 7")
    return place[:, :3]


def commanded_orientation(env: Env, command: str) -> torch.Tensor:
    """Return the quaternion of a command. Shape (num_envs, 4)."""
    place = env.command(command)
    if place.shape[1] not in (4, 7):
        raise RequestError(f"command {command} has {place.shape[1]} columns; one with an orientation has 4 or 7")
    return place[:, -4:]


def commanded_velocity(env: Env, command: str) -> torch.Tensor:
    """Return ahead, left and turn of a command, in m/s and rad/s. Shape (num_envs, 3)."""
    return _take_velocity(env, env.command(command), command)


def drawn_velocity(env: Env, command: str) -> torch.Tensor:
    """Return the same of the draw, before it was refined. Shape (num_envs, 3)."""
    return _take_velocity(env, env.drawn_command(command), command)


def _take_velocity(env: Env, values: torch.Tensor, command: str) -> torch.Tensor:
    if values.shape[1] < 3 and not env.is_recorded:
        raise RequestError(f"command {command} has {values.shape[1]} columns; one with a velocity begins with 3")
    return values[:, :3]
