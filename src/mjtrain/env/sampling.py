"""Random numbers for every world, from the generator of the environment."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from mjtrain.env.env import Env


def uniform(env: "Env", bounds: tuple[float, float], *size: int) -> torch.Tensor:
    """Draw from bounds[0] to bounds[1] for every world. Shape (num_envs, *size)."""
    noise = torch.rand(env.num_envs, *size, generator=env.rng, device=env.device)
    return bounds[0] + (bounds[1] - bounds[0]) * noise


def draw_steps(bounds_s: tuple[float, float], env: "Env") -> torch.Tensor:
    """Draw a number of env steps for every world. Shape (num_envs,)."""
    low, high = (max(1, round(bound_s / env.step_dt)) for bound_s in bounds_s)
    return torch.randint(low, max(high, low) + 1, (env.num_envs,), generator=env.rng, device=env.device)
