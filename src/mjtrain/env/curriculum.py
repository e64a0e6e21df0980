"""Levels of difficulty that rise with success."""

from typing import TYPE_CHECKING

import torch

from mjtrain.config import CurriculumTerm

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Curriculum:
    """Keeps a level per world and term."""

    def __init__(self, terms: dict[str, CurriculumTerm], env: "Env") -> None:
        self._terms = terms
        self.levels = {name: _draw(term.initial, env) for name, term in terms.items()}
        """Level of every world by term, within the term's bounds. Shape (num_envs,)."""

    def update(self, env: "Env", done: torch.Tensor) -> None:
        """Move the levels of worlds whose episode ends.

        Args:
            env: The environment, its episodes not yet restarted.
            done: Boolean, shape (num_envs,).
        """
        for name, term in self._terms.items():
            level = self.levels[name]
            level.copy_(torch.where(done, term.func(env, level, **term.params).clamp(*term.bounds), level))

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return what lives from step to step."""
        return self.levels


def _draw(bounds: tuple[float, float], env: "Env") -> torch.Tensor:
    noise = torch.rand(env.num_envs, generator=env.rng, device=env.device)
    return bounds[0] + (bounds[1] - bounds[0]) * noise
