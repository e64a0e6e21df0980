"""What the policy is asked to do."""

from typing import TYPE_CHECKING

import torch

from mjtrain.config import CommandTerm
from mjtrain.env.sampling import draw_steps

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Commands:
    """Draws commands and keeps them until their time is over."""

    def __init__(self, terms: dict[str, CommandTerm], env: "Env") -> None:
        self._terms = terms
        self.drawn = {name: term.func(env, **term.params) for name, term in terms.items()}
        """What was last drawn for each term, before it is refined. Shape (num_envs, size)."""
        self.held: dict[str, torch.Tensor] = {}
        """What is asked by hand and takes the place of draws, by term. Shape (num_envs, size)."""
        self._left = {name: draw_steps(term.resampling_s, env) for name, term in terms.items()}
        self.values = {name: self._refine(name, env, None).clone() for name in terms}
        """The command of each term. Shape (num_envs, size)."""

    def update(self, env: "Env", fresh: torch.Tensor) -> None:
        """Let an env step pass.

        Args:
            env: The environment.
            fresh: Worlds whose episode has just begun. Boolean, shape (num_envs,).
        """
        for name in self._terms:
            self._left[name] -= 1
            self._draw(name, env, fresh | (self._left[name] <= 0))
            before = self.values[name].masked_fill(fresh[:, None], 0.0)
            self.values[name].copy_(self._refine(name, env, before))

    def begin(self, env: "Env", mask: torch.Tensor) -> None:
        """Draw new commands for the masked worlds."""
        for name in self._terms:
            self._draw(name, env, mask)
            begun = self._refine(name, env, torch.zeros_like(self.values[name]))
            self.values[name].copy_(torch.where(mask[:, None], begun, self.values[name]))

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return what lives from step to step."""
        return {
            **{f"{name}.drawn": drawn for name, drawn in self.drawn.items()},
            **{f"{name}.left": left for name, left in self._left.items()},
            **{f"{name}.value": value for name, value in self.values.items()},
        }

    def _draw(self, name: str, env: "Env", mask: torch.Tensor) -> None:
        term = self._terms[name]
        drawn, left = self.drawn[name], self._left[name]
        new = self.held[name] if name in self.held else term.func(env, **term.params)
        drawn.copy_(torch.where(mask[:, None], new, drawn))
        left.copy_(torch.where(mask, draw_steps(term.resampling_s, env), left))

    def _refine(self, name: str, env: "Env", before: torch.Tensor | None) -> torch.Tensor:
        term, drawn = self._terms[name], self.drawn[name]
        return drawn if term.refine is None else term.refine(env, drawn, before, **term.refine_params)
