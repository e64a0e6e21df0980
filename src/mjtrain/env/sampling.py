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


def draw_steps(core: EnvCore, bounds_s: tuple[float, float]) -> torch.Tensor:
    """Draw a duration between bounds in seconds for every world, in env steps, at least 1. Shape (num_envs,)."""
    low, high = (max(1, round(bound_s / core.step_dt)) for bound_s in bounds_s)
    return torch.randint(low, max(high, low) + 1, (core.num_envs,), generator=core.rng, device=core.device)
