"""When an episode ends."""

from typing import TYPE_CHECKING

import torch

from mjtrain.config import TerminationTerm
from mjtrain.env.core import EnvCore

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Terminations:
    """Evaluates the termination terms."""

    def __init__(self, terms: dict[str, TerminationTerm], core: EnvCore) -> None:
        self._core = core
        self._terms = [(term.func, term.params) for term in terms.values()]
        self._truncates = [term.truncates for term in terms.values()]

    def compute(self, env: "Env") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Evaluate every term.

        Returns:
            terminated, boolean, shape (num_envs,); truncated, likewise, false where terminated; causes, boolean, shape
            (num_envs, num_terms): the result of each term.
        """
        results = [func(env, **params) for func, params in self._terms]
        never = torch.zeros(self._core.num_envs, dtype=torch.bool, device=self._core.device)
        terminated = truncated = never
        for result, truncates in zip(results, self._truncates, strict=True):
            if truncates:
                truncated = truncated | result
            else:
                terminated = terminated | result
        causes = torch.stack(results, dim=1) if results else never[:, None][:, :0]
        return terminated, truncated & ~terminated, causes
