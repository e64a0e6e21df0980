"""When an episode ends."""

from typing import TYPE_CHECKING

import torch

from mjtrain.config import TerminationTerm

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Terminations:
    """Evaluates the termination terms."""

    def __init__(self, terms: dict[str, TerminationTerm]) -> None:
        self._terms = [(term.func, term.params) for term in terms.values()]
        self._truncates = [term.truncates for term in terms.values()]

    def compute(self, env: "Env") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ask every term.

        Returns:
            terminated, boolean, shape (num_envs,); truncated, likewise, false where terminated; causes, boolean, shape
            (num_envs, num_terms): what each term said.
        """
        said = [func(env, **params) for func, params in self._terms]
        never = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        terminated = truncated = never
        for verdict, truncates in zip(said, self._truncates, strict=True):
            if truncates:
                truncated = truncated | verdict
            else:
                terminated = terminated | verdict
        causes = torch.stack(said, dim=1) if said else never[:, None][:, :0]
        return terminated, truncated & ~terminated, causes
