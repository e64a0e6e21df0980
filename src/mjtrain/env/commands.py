"""What the policy is commanded to do."""

from typing import TYPE_CHECKING

import torch

from mjtrain.config import CommandTerm
from mjtrain.env.core import EnvCore
from mjtrain.env.sampling import draw_steps
from mjtrain.env.term_result import call_term

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Commands:
    """Draws commands and holds each of them until its time is over, or until it has been met."""

    def __init__(self, terms: dict[str, CommandTerm], core: EnvCore) -> None:
        self._terms = terms
        self._core = core
        self.drawn: dict[str, torch.Tensor] = {}
        """The last draw of each term, before it is refined. Empty until `start`. Shape (num_envs, size)."""
        self.values: dict[str, torch.Tensor] = {}
        """The command of each term. Empty until `start`. Shape (num_envs, size)."""
        self.held: dict[str, torch.Tensor] = {}
        """Commands given by hand, by term; they replace draws. Shape (num_envs, size)."""
        self._left: dict[str, torch.Tensor] = {}
        self._early = [name for name, term in terms.items() if term.before_reset]

    def draw_before_reset(self, env: "Env", mask: torch.Tensor) -> None:
        """Draw commands that reset events may read, where episodes begin. Boolean mask, shape (num_envs,)."""
        for name in self._early:
            if name in self.drawn:
                self._draw(name, env, mask)
            else:
                self._draw_first(name, env)

    def start(self, env: "Env") -> None:
        """Draw the first commands."""
        for name in self._terms:
            if name not in self.drawn:
                self._draw_first(name, env)
        self._left = {name: draw_steps(self._core, term.resampling_s) for name, term in self._terms.items()}
        self._core.read_only.add({f"drawn of commands.{name}": drawn for name, drawn in self.drawn.items()})
        self.values = {name: self._refine(name, env, None).clone() for name in self._terms}
        self._core.read_only.add({f"env.command({name!r})": value for name, value in self.values.items()})

    def update(self, env: "Env", fresh: torch.Tensor) -> None:
        """Advance by an env step; in fresh worlds an episode has just begun. Boolean, shape (num_envs,)."""
        for name, term in self._terms.items():
            if name not in self._early:
                self._left[name] -= 1
                due = fresh | (self._left[name] <= 0)
                reached = term.resample_on
                self._draw(name, env, due if reached is None else due | env.success(reached))
            before = self.values[name].masked_fill(fresh[:, None], 0.0)
            self.values[name].copy_(self._refine(name, env, before))

    def reset(self, env: "Env", mask: torch.Tensor) -> None:
        """Draw new commands for the masked worlds. Boolean, shape (num_envs,)."""
        for name in self._terms:
            if name not in self._early:
                self._draw(name, env, mask)
            begun = self._refine(name, env, torch.zeros_like(self.values[name]))
            self.values[name].copy_(torch.where(mask[:, None], begun, self.values[name]))

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the tensors that persist from step to step."""
        return {
            **{f"{name}.drawn": drawn for name, drawn in self.drawn.items()},
            **{f"{name}.left": left for name, left in self._left.items()},
            **{f"{name}.value": value for name, value in self.values.items()},
        }

    def _draw_first(self, name: str, env: "Env") -> None:
        # A copy: the function may have returned a view of the state, or a tensor that it keeps.
        self.drawn[name] = self._call(name, env).clone()

    def _draw(self, name: str, env: "Env", mask: torch.Tensor) -> None:
        drawn = self.drawn[name]
        new = self.held[name] if name in self.held else self._call(name, env)
        if new.shape != drawn.shape:
            raise TypeError(f"--env.commands.{name}: has shape {tuple(new.shape)} now, and had {tuple(drawn.shape)}")
        drawn.copy_(torch.where(mask[:, None], new, drawn))
        if name in self._early:
            return
        left = self._left[name]
        left.copy_(torch.where(mask, draw_steps(self._core, self._terms[name].resampling_s), left))

    def _call(self, name: str, env: "Env") -> torch.Tensor:
        term = self._terms[name]
        return call_term(f"commands.{name}", term.func, env, term.params, self._core)

    def _refine(self, name: str, env: "Env", before: torch.Tensor | None) -> torch.Tensor:
        term, drawn = self._terms[name], self.drawn[name]
        if term.refine is None:
            return drawn
        return call_term(f"commands.{name}.refine", term.refine, env, term.refine_params, self._core, drawn, before)
