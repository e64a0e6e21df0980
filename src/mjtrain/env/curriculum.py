"""Levels of difficulty that rise with success."""

from typing import TYPE_CHECKING

import torch

from mjtrain.config import CurriculumTerm
from mjtrain.env.core import EnvCore
from mjtrain.env.sampling import uniform
from mjtrain.env.term_result import check_results, name_term

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Curriculum:
    """Keeps a level per world and term."""

    def __init__(self, terms: dict[str, CurriculumTerm], core: EnvCore) -> None:
        self._terms = terms
        self._core = core
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
            try:
                following = term.func(env, level, **term.params)
            except Exception as error:
                name_term(error, f"curriculum.{name}")
                raise
            if following.shape != level.shape:
                check_results("curriculum", [f"curriculum.{name}"], [following], self._core)
            level.copy_(torch.where(done, following.clamp(*term.bounds), level))

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the tensors that persist from step to step."""
        return self.levels
