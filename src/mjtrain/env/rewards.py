"""The reward: a weighted sum of named terms."""

from typing import TYPE_CHECKING

import torch

from mjtrain.config import RewardTerm
from mjtrain.env.core import EnvCore
from mjtrain.env.term_result import stack_terms

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Rewards:
    """Evaluates the reward terms."""

    def __init__(self, terms: dict[str, RewardTerm], core: EnvCore) -> None:
        self._core = core
        self._terms = [(f"rewards.{name}", term.func, term.params) for name, term in terms.items()]
        self._weights = torch.tensor([term.weight * core.step_dt for term in terms.values()], device=core.device)

    def compute(self, env: "Env") -> torch.Tensor:
        """Return weight * func * step_dt of every term, in order. Shape (num_envs, num_terms)."""
        return stack_terms("reward", self._terms, env, self._core) * self._weights
