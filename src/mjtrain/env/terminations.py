"""When an episode ends."""

from typing import TYPE_CHECKING

import torch

from mjtrain.config import TerminationTerm
from mjtrain.env.core import EnvCore
from mjtrain.env.term_result import stack_terms

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Terminations:
    """Evaluates the termination terms."""

    def __init__(self, terms: dict[str, TerminationTerm], core: EnvCore) -> None:
        self._core = core
        self._terms = [(f"terminations.{name}", term.func, term.params) for name, term in terms.items()]
        self._truncates = [term.truncates for term in terms.values()]

    def compute(self, env: "Env") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Evaluate every term.

        Returns:
            terminated, boolean, shape (num_envs,); truncated, likewise, false where terminated; causes, boolean, shape
            (num_envs, num_terms): the result of each term.
        """
        never = torch.zeros(self._core.num_envs, dtype=torch.bool, device=self._core.device)
        causes = stack_terms("termination", self._terms, env, self._core) if self._terms else never[:, None][:, :0]
        terminated = truncated = never
        for result, truncates in zip(causes.unbind(dim=1), self._truncates, strict=True):
            if truncates:
                truncated = truncated | result
            else:
                terminated = terminated | result
        return terminated, truncated & ~terminated, causes
