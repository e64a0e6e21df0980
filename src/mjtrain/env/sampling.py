"""What terms draw for every world from the generator of the environment, and how they read parts of commands.

A place is a position in m, a quaternion (w, x, y, z), or both, in the world's frame. A velocity is (ahead, left, turn)
in m/s and rad/s, in the frame of the body. Further columns, such as a heading, come after these. Runs may have recorded
commands of other widths, from before these checks existed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjtrain.runtime.deferred_imports import torch
from mjtrain.runtime.errors import RequestError

if TYPE_CHECKING:
    from mjtrain.env.core import EnvCore
    from mjtrain.env.env import Env


def uniform(env: Env | EnvCore, bounds: tuple[float, float], *size: int) -> torch.Tensor:
    """Draw from bounds[0] to bounds[1] for every world. Shape (num_envs, *size)."""
    noise = torch.rand(env.num_envs, *size, generator=env.rng, device=env.device)
    return bounds[0] + (bounds[1] - bounds[0]) * noise


def shift_images(images: torch.Tensor, most: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """Shift each image by up to most pixels along both axes, and repeat what is at the edge.

    Args:
        images: Shape (num_images, num_channels, height, width).
        generator: None for torch's global one.
    """
    num, _, height, width = images.shape
    offsets = torch.randint(-most, most + 1, (2, num, 1), generator=generator, device=images.device)
    rows, columns = (
        (torch.arange(size, device=images.device) + offset).clamp(0, size - 1)
        for size, offset in zip((height, width), offsets, strict=True)
    )
    number = torch.arange(num, device=images.device)[:, None, None]
    return images.movedim(1, -1)[number, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


def draw_steps(core: EnvCore, bounds_s: tuple[float, float]) -> torch.Tensor:
    """Draw a duration between bounds in seconds for every world, in env steps, at least 1. Shape (num_envs,)."""
    low, high = (max(1, round(bound_s / core.step_dt)) for bound_s in bounds_s)
    return torch.randint(low, max(high, low) + 1, (core.num_envs,), generator=core.rng, device=core.device)


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
