"""What happens to worlds apart from the policy: commands, randomisation, resets, pushes."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mjtrain.config import CommandTerm, EventTerm
from mjtrain.env.core import EnvCore
from mjtrain.env.sampling import draw_steps
from mjtrain.env.term_result import call_term
from mjtrain.sim.robots.layout import match_names

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


@dataclass(frozen=True, kw_only=True)
class Worlds:
    """The worlds that an event changes. Event terms change qpos and qvel of whole batches in place.

    Only the masked worlds are read afterwards. In mode reset, qpos and qvel are the state in which the episode will
    start. In mode interval they are the current state, of which only qvel may change.
    """

    mask: torch.Tensor
    """Which worlds. Boolean, shape (num_envs,)."""

    qpos: torch.Tensor
    """Shape (num_envs, nq)."""

    qvel: torch.Tensor
    """Shape (num_envs, nv)."""


class Events:
    """Evaluates the event terms."""

    def __init__(self, terms: dict[str, EventTerm], core: EnvCore) -> None:
        self._core = core
        self._by_mode = {
            mode: {name: term for name, term in terms.items() if term.mode == mode}
            for mode in ("startup", "reset", "interval")
        }
        self._left = {name: draw_steps(core, term.interval_s) for name, term in self._by_mode["interval"].items()}
        self.running: EventTerm | None = None
        """The term whose function is being called."""

    def start(self, env: "Env") -> None:
        """Apply the events of mode startup to every world."""
        if self._by_mode["startup"]:
            everywhere = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
            worlds = Worlds(mask=everywhere, qpos=env.state.qpos.clone(), qvel=env.state.qvel.clone())
            for name, term in self._by_mode["startup"].items():
                self._apply(name, term, env, worlds)

    def sample_start(self, env: "Env", mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw qpos and qvel where masked worlds start, from the default pose and the reset events; see `Worlds`."""
        layout = env.engine.layout
        worlds = Worlds(
            mask=mask,
            qpos=layout.default_qpos.repeat(env.num_envs, 1),
            qvel=layout.default_qvel.repeat(env.num_envs, 1),
        )
        for name, term in self._by_mode["reset"].items():
            self._apply(name, term, env, worlds)
        return worlds.qpos, worlds.qvel

    def apply_interval(self, env: "Env", changed: Callable[[], None]) -> None:
        """Advance by an env step, and apply the events of mode interval where they are due.

        Each may change qvel, and `changed` is called after it.
        """
        for name, term in self._by_mode["interval"].items():
            left = self._left[name]
            due = left <= 1
            left.copy_(torch.where(due, draw_steps(self._core, term.interval_s), left - 1))
            worlds = Worlds(mask=due, qpos=env.state.qpos.clone(), qvel=env.state.qvel.clone())
            self._apply(name, term, env, worlds)
            env.engine.set_qvel(due, worlds.qvel)
            changed()

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the tensors that persist from step to step."""
        return {f"{name}.left": left for name, left in self._left.items()}

    def _apply(self, name: str, term: EventTerm, env: "Env", worlds: Worlds) -> None:
        self.running = term
        try:
            call_term(f"events.{name}", term.func, env, term.params, self._core, worlds)
        finally:
            self.running = None


class Pushes:
    """Forces and torques by body, and how long they last. What it knows of the worlds is in the memory of terms."""

    def __init__(self, core: EnvCore) -> None:
        self._core = core
        self._by_body: dict[str, tuple[int, torch.Tensor]] = {}

    def begin(self, body: str, mask: torch.Tensor, wrench: torch.Tensor, duration_s: torch.Tensor) -> None:
        """Push a body from this env step on, in place of what pushed it before; see `Env.push`."""
        self._register(body)
        steps = (duration_s / self._core.step_dt).round().clamp(min=1.0)
        _, push = self._by_body[body]
        push.copy_(torch.where(mask[:, None], torch.cat([wrench, steps[:, None]], dim=1), push))

    def _register(self, body: str) -> None:
        if body not in self._by_body:
            bodies = self._core.engine.layout.bodies
            row = bodies[match_names([re.escape(body)], bodies, "body")[0]]
            self._by_body[body] = (row, self._core.memory.tensor(f"push.{body}", 7))

    def resume(self, memory: Iterable[str]) -> None:
        """Continue the pushes of a checkpoint, by the names in its memory of terms."""
        for body in self._core.engine.layout.bodies:
            if f"push.{body}" in memory:
                self._register(body)

    def apply(self) -> None:
        """Give the engine the forces of this env step."""
        for row, push in self._by_body.values():
            left = push[:, 6:]
            self._core.engine.set_body_force(row, torch.where(left > 0, push[:, :6], 0.0))
            left.sub_(1.0).clamp_(min=0.0)
