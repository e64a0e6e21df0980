"""Levels of difficulty that rise with success."""

from typing import TYPE_CHECKING

import torch

from mjtrain.config import CurriculumTerm
from mjtrain.env.core import EnvCore
from mjtrain.env.sampling import uniform

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Curriculum:
    """Keeps a level per world and term."""

    def __init__(self, terms: dict[str, CurriculumTerm], core: EnvCore) -> None:
        self._terms = terms
        self.levels = {name: uniform(core, term.initial) for name, term in terms.items()}
        """Level of every world by term, within the term's bounds. Shape (num_envs,)."""

    def update(self, env: "Env", done: torch.Tensor) -> None:
        """Change the levels of worlds whose episode ends.

        Args:
            env: The environment, before those episodes are reset.
            done: Boolean, shape (num_envs,).
        """
        for name, term in self._terms.items():
            level = self.levels[name]
            level.copy_(torch.where(done, term.func(env, level, **term.params).clamp(*term.bounds), level))

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the tensors that persist from step to step."""
        return self.levels
