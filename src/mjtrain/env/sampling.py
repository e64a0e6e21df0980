"""Random numbers for every world, from the generator of the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjtrain.runtime.deferred_imports import torch

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
