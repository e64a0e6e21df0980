"""From the policy's output to the actuators."""

import re
from typing import TYPE_CHECKING, Any

import torch

from mjtrain.config import ActionTerm
from mjtrain.env.core import DelayLine, EnvCore, line_buffers
from mjtrain.env.term_result import call_term
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.layout import Layout, match_names

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Actions:
    """Evaluates the action terms and keeps the last three actions."""

    def __init__(self, terms: dict[str, ActionTerm], core: EnvCore, *, noise: bool) -> None:
        layout, num_envs, device = core.engine.layout, core.num_envs, core.device
        columns: list[int] = []
        noises: list[float] = []
        table: list[dict[str, Any]] = []
        self._lines: dict[str, tuple[slice, DelayLine]] = {}
        self._bases: list[tuple[str, slice, ActionTerm]] = []
        for name, term in terms.items():
            if not term.actuators:
                raise RequestError(f"--env.actions.{name}.actuators: is empty; give patterns of actuators")
            parts = [
                layout.controls[hit] for hit in match_names(term.actuators, layout.controls, "actuator with a control")
            ]
            matched = sorted({column for part in parts for column in range(part.start, part.stop)})
            part = slice(len(columns), len(columns) + len(matched))
            if term.delay[1]:
                self._lines[name] = (part, DelayLine(term.delay, (len(matched),), core))
            if term.base is not None:
                self._bases.append((f"actions.{name}.base", part, term))
            columns += matched
            noises += [term.noise] * len(matched)
            table += _make_rows(name, term, layout, matched)
        if len(set(columns)) < len(columns):
            raise RequestError("--env.actions: two terms drive the same actuator; give each actuator to one term")
        self.size = len(columns)
        self.current = torch.zeros(num_envs, self.size, device=device)
        self.previous = torch.zeros_like(self.current)
        self.before_previous = core.memory.tensor("actions.before_previous", self.size)
        self._columns = torch.tensor(columns, dtype=torch.long, device=device)
        rows = [
            (row["scale"], row["offset"], *row["clip"], noise, row["relative"])
            for row, noise in zip(table, noises, strict=True)
        ]
        settings = torch.tensor(rows, device=device).reshape(len(rows), 6).T.contiguous()
        self._scale, self._offset, self._low, self._high, largest, relative = settings
        self._relative = relative.bool() if relative.any() else None
        least, most = layout.ctrl_range[self._columns].T
        self._least, self._most = (least.where(relative.bool(), -torch.inf), most.where(relative.bool(), torch.inf))
        bounded = (self._scale != 0) & ~relative.bool()
        bounded[[column for _, part, _ in self._bases for column in range(part.start, part.stop)]] = False
        ends = torch.stack([(bound - self._offset) / self._scale for bound in (least, most)])
        ends = torch.where(bounded, ends, ends.new_tensor([[-torch.inf], [torch.inf]]))
        self.bounds = (torch.maximum(ends.amin(0), self._low), torch.minimum(ends.amax(0), self._high))
        """Lower and upper bound of an action by its clip and by the range of its control. Shape (size,) each."""
        self._target = self._offset.repeat(num_envs, 1)
        self._core = core
        self._noise = largest if noise and largest.any() else None
        self._ctrl = layout.default_ctrl.repeat(num_envs, 1)
        self.table = table
        """What each column of an action does: its actuator, the input if that has several controls, and the fields of
        `ActionTerm`, home in the offset."""

    def apply(self, action: torch.Tensor, env: "Env") -> torch.Tensor:
        """Turn an action, (num_envs, size), into all controls, (num_envs, nu); those without a term do not change."""
        self.before_previous.copy_(self.previous)
        self.previous.copy_(self.current)
        self.current.copy_(action.detach())  # or what the environment remembers would need gradients
        arrived = self.current
        if self._lines:
            arrived = arrived.clone()
            for part, line in self._lines.values():
                arrived[:, part] = line.push(self.current[:, part])
        change = self._scale * torch.clamp(arrived, self._low, self._high)
        if self._bases:
            values = self._find_offsets(env) + change
        elif self._relative is None:
            values = self._offset + change
        else:
            values = torch.where(self._relative, self._target, self._offset) + change
        if self._relative is not None:
            values = torch.clamp(values, self._least, self._most)
        self._target.copy_(values)
        if self._noise is not None:
            values += self._noise * (2 * torch.rand(values.shape, generator=self._core.rng, device=values.device) - 1)
        return self._ctrl.index_copy_(1, self._columns, values)

    def _find_offsets(self, env: "Env") -> torch.Tensor:
        """Return what is added to the scaled actions, of which some have bases. Shape (num_envs, size)."""
        offsets = self._offset.repeat(len(self.current), 1)
        if self._relative is not None:
            offsets = torch.where(self._relative, self._target, offsets)
        for name, part, term in self._bases:
            assert term.base is not None
            base = call_term(name, term.base, env, term.base_params, self._core)
            if base.shape != (len(offsets), part.stop - part.start):
                wanted = f"(num_envs, {part.stop - part.start}), one column for each control of the term"
                raise RequestError(f"--env.{name}: returned shape {tuple(base.shape)}; it must be {wanted}")
            offsets[:, part] = base
        return offsets

    def displacements(self) -> torch.Tensor:
        """Return what the actions ask of their actuators, without noise, less their offsets. Shape (num_envs, size)."""
        return self._target - self._offset

    def reset(self, mask: torch.Tensor) -> None:
        """Begin again in the masked worlds, with remembered actions of zero. Boolean, shape (num_envs,)."""
        self.current.masked_fill_(mask[:, None], 0.0)
        self.previous.masked_fill_(mask[:, None], 0.0)
        torch.where(mask[:, None], self._offset, self._target, out=self._target)
        for part, line in self._lines.values():
            line.begin(mask, self.current[:, part])

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the tensors that persist from step to step."""
        lines = line_buffers({name: line for name, (_, line) in self._lines.items()})
        own = {"current": self.current, "previous": self.previous, "ctrl": self._ctrl, "target": self._target}
        return own | lines


def find_position_actuators(table: list[dict[str, Any]]) -> list[str]:
    """Return the actuators of a table of actions, each of which sets one position and nothing else."""
    if others := [row["actuator"] for row in table if row["relative"] or {"base", "input"} & row.keys()]:
        raise RequestError(
            f"actions of {', '.join(others)}: are relative, have a base, or are one of several controls; this "
            "controller sets one position for each actuator (--without controllers.NAME leaves it out, and "
            '--agent.algorithm.warm-start.controller "" begins with random weights)'
        )
    return [row["actuator"] for row in table]


def actions_that_set(table: list[dict[str, Any]], controls: torch.Tensor) -> torch.Tensor:
    """Return the actions that set these controls of position actuators. Shapes (num_envs, num_actions)."""
    offset, scale = torch.tensor([(row["offset"], row["scale"]) for row in table], device=controls.device).T
    return (controls - offset) / scale


def _make_rows(name: str, term: ActionTerm, layout: Layout, columns: list[int]) -> list[dict[str, Any]]:
    return [
        {
            "actuator": actuator,
            **({} if word is None else {"input": word}),
            "scale": scale,
            "offset": term.offset + (layout.default_ctrl[column].item() if term.from_home else 0.0),
            "relative": term.relative,
            "clip": term.clip,
            "delay": term.delay,
            **({} if term.base is None else {"base": term.base.__name__, "base_params": term.base_params}),
        }
        for column, scale in zip(columns, _find_scales(name, term, layout, columns), strict=True)
        for actuator, word in [layout.inputs[column]]
    ]


def _find_scales(name: str, term: ActionTerm, layout: Layout, columns: list[int]) -> list[float]:
    if not isinstance(term.scale, dict):
        return [term.scale] * len(columns)
    flag = f"--env.actions.{name}.scale"
    names = {column: ":".join(filter(None, layout.inputs[column])) for column in columns}
    found: dict[int, tuple[str, float]] = {}
    for pattern, scale in term.scale.items():
        try:
            parts = [part for control, part in layout.controls.items() if re.fullmatch(pattern, control)]
        except re.error as error:
            raise RequestError(f"{flag}: {pattern!r} is not a valid regular expression: {error}") from error
        hits = {column for part in parts for column in range(part.start, part.stop)} & set(columns)
        if not hits:
            raise RequestError(f"{flag}: {pattern!r} matches no actuator; the term has {', '.join(names.values())}")
        for column in sorted(hits):
            if column in found:
                raise RequestError(
                    f"{flag}: actuator {names[column]} is matched by {found[column][0]!r} and by {pattern!r}; give "
                    "each actuator to one expression"
                )
            found[column] = (pattern, scale)
    if missing := [names[column] for column in columns if column not in found]:
        raise RequestError(f"{flag}: no expression matches {', '.join(missing)}; give every actuator a scale")
    return [found[column][1] for column in columns]
