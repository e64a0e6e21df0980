"""The reward: a weighted sum of named terms."""

from typing import TYPE_CHECKING

import torch

from mjtrain.config import RewardTerm

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Rewards:
    """Evaluates the reward terms."""

    def __init__(self, terms: dict[str, RewardTerm], step_dt: float) -> None:
        self._terms = [(term.func, term.params, term.weight * step_dt) for term in terms.values()]

    def compute(self, env: "Env") -> torch.Tensor:
        """Return weight * func * step_dt of every term, in order. Shape (num_envs, num_terms)."""
        return torch.stack([func(env, **params) * weight for func, params, weight in self._terms], dim=1)


def alive(env: "Env") -> torch.Tensor:
    """One, always. Shape (num_envs,)."""
    return torch.ones(env.num_envs, device=env.device)


def action_rate(env: "Env") -> torch.Tensor:
    """Squared change of the action since the step before, summed over actions. Shape (num_envs,)."""
    return (env.action - env.last_action).square().sum(dim=1)


def action_energy(env: "Env") -> torch.Tensor:
    """Squared action, summed over actions. Shape (num_envs,)."""
    return env.action.square().sum(dim=1)
