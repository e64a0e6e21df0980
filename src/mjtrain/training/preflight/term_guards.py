"""Guards around term functions, which note what is wrong with each result and return something that fits instead."""

import contextlib
import functools
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mjtrain.config import EnvConfig, EventTerm
from mjtrain.env.env import Env
from mjtrain.env.events import Worlds
from mjtrain.env.term_result import Kind, describe_exception, find_result_problem
from mjtrain.runtime.errors import RequestError, StoppedError
from mjtrain.sim.engines.base import MAX_VALUE

_UNUSABLE = "cannot use its parameters together"
_CONSEQUENCES = ("() raised ", "returned no columns", _UNUSABLE, "; a draw of this command has ")
_UPSTREAM = ("commands.", "events.", "curriculum.")


class TermGuards:
    """Replaces every function by one that notes what is wrong, and then returns something that fits."""

    def __init__(self) -> None:
        self.problems: dict[str, str] = {}
        """What is wrong with a function, by the place of its term."""
        self.kept: dict[str, str] = {}
        """Which attributes of the environment a function keeps something in, by the place of its term."""
        self.after: dict[str, np.ndarray] = {}
        """Positions after the last call of each reset event. Shape (num_envs, nq)."""
        self.returned: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
        """What observations and rewards returned in each call, by the place of the term. Shape (num_envs, ...)."""
        self.quick = False
        """Whether to skip undoing what functions write, because most of them write in their first calls."""
        self._added: set[str] = set()

    def guard_all(self, config: EnvConfig) -> EnvConfig:
        """Return a config with guarded functions."""

        def guarded(kind: Kind, group: str, terms: dict[str, Any]) -> dict[str, Any]:
            return {
                name: term.replace(func=self._guard(kind, f"{group}.{name}", term.func)) for name, term in terms.items()
            }

        commands = {}
        for name, term in guarded("command", "commands", config.commands).items():
            place = f"commands.{name}"
            changes: dict[str, Any] = {"errors": guarded("error", f"{place}.errors", term.errors)}
            if term.refine is not None:
                changes["refine"] = self._guard("refine", f"{place}.refine", term.refine)
            if term.steer is not None:
                changes["steer"] = self._guard("steer", f"{place}.steer", term.steer)
            commands[name] = term.replace(**changes)
        return replace(
            config,
            observations={
                group: guarded("observation", f"observations.{group}", terms)
                for group, terms in config.observations.items()
            },
            rewards=guarded("reward", "rewards", config.rewards),
            terminations=guarded("termination", "terminations", config.terminations),
            successes=guarded("success", "successes", config.successes),
            commands=commands,
            events={name: term.replace(func=self._guard_event(name, term)) for name, term in config.events.items()},
            curriculum=guarded("curriculum", "curriculum", config.curriculum),
            controllers=guarded("controller", "controllers", config.controllers),
        )

    def _guard(self, kind: Kind, name: str, func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def call(env: Env, *args: Any, **params: Any) -> Any:
            before, attributes = [] if self.quick else env.read_only.copy(), dict(vars(env))
            try:
                value = func(env, *args, **params)
            except (StoppedError, KeyboardInterrupt):
                raise
            except BaseException as error:
                env.read_only.restore(before)
                self.problems.setdefault(name, _describe_error(func, error, env, params, args))
                return _substitute(kind, env, args)
            if before and isinstance(value, torch.Tensor):  # it may be a view of what is undone
                value = value.clone()
            problem = (
                env.read_only.restore(before)
                or _undo_replaced(env, attributes, self._added)
                or find_result_problem(kind, value, env.num_envs, env.device)
                or _find_other_size(kind, name, env, value, args)
            )
            if problem is None and not _is_finite(value):
                problem = _find_infinite(value, env)
            self._note_attributes(name, func, env, attributes)
            if problem is None:
                if kind in ("observation", "reward"):
                    self.returned[name].append(value.clone())
                return value
            self.problems.setdefault(name, f"{func.__name__}() {problem}")
            return _substitute(kind, env, args)

        return call

    def _guard_event(self, term_name: str, term: EventTerm) -> Callable[..., Any]:
        name, func, mode = f"events.{term_name}", term.func, term.mode

        @functools.wraps(func)
        def call(env: Env, worlds: Worlds, **params: Any) -> None:
            before = worlds.qpos.clone(), worlds.qvel.clone()
            watched, attributes = [] if self.quick else env.read_only.copy(), dict(vars(env))
            problem = None
            try:
                with _noting_pushes(env) as wrong_pushes:
                    value = func(env, worlds, **params)
                problem = env.read_only.restore(watched) or _undo_replaced(env, attributes, self._added)
                problem = problem or find_result_problem("event", value, env.num_envs, env.device)
                changed = torch.cat([worlds.qpos, worlds.qvel], dim=1)[worlds.mask]  # no other worlds are read later
                if problem is None and not _is_finite(changed):
                    problem = "left numbers in worlds.qpos or worlds.qvel that are not finite"
                if problem is None and mode == "interval" and not torch.equal(worlds.qpos, before[0]):
                    problem = "changed worlds.qpos in mode interval; change worlds.qvel, or use reset_event"
                if problem is None and mode == "startup" and not torch.equal(torch.cat(before, dim=1), changed):
                    problem = (
                        "changed worlds.qpos or worlds.qvel in mode startup, and the first episode replaces both; use "
                        "reset_event"
                    )
                problem = problem or _find_bent_quaternion(env, worlds) or next(iter(wrong_pushes), None)
                problem = problem and f"{func.__name__}() {problem}"
            except (StoppedError, KeyboardInterrupt):
                raise
            except BaseException as error:
                env.read_only.restore(watched)
                problem = _describe_error(func, error, env, params)
                if isinstance(error, AttributeError) and "cannot assign to field" in problem:
                    problem += "; write into it, as in worlds.qpos[:, 0] += …"
            self._note_attributes(name, func, env, attributes)
            if problem is not None:
                self.problems.setdefault(name, problem)
                worlds.qpos.copy_(before[0])
                worlds.qvel.copy_(before[1])
            if mode == "reset":
                self.after[term_name] = worlds.qpos.double().numpy()

        return call

    def _note_attributes(self, name: str, func: Callable[..., Any], env: Env, before: dict[str, Any]) -> None:
        if len(vars(env)) != len(before) and (new := sorted(set(vars(env)) - set(before))):
            self._added.update(new)
            kept = " and ".join(f"env.{attribute}" for attribute in new)
            self.kept.setdefault(name, f"{func.__name__}() keeps {kept}, which checkpoints do not save")


def _undo_replaced(env: Env, before: dict[str, Any], added: set[str]) -> str | None:
    """Undo what a function has put in the place of a public attribute that no function has added, and name it."""
    if all(map(operator.is_, before.values(), vars(env).values())):
        return None
    for name, value in before.items():
        if name not in added and not name.startswith("_") and getattr(env, name) is not value:
            setattr(env, name, value)
            return f"replaced env.{name}, which belongs to the environment"
    return None


@contextlib.contextmanager
def _noting_pushes(env: Env) -> Iterator[list[str]]:
    """Yield what is wrong with the numbers that `env.push` gets in a with block; a push without end is possible."""
    found: list[str] = []
    push = env.push

    def note(body: str, mask: torch.Tensor, wrench: torch.Tensor, duration_s: torch.Tensor | float) -> None:
        push(body, mask, wrench, duration_s)
        durations = torch.as_tensor(duration_s, dtype=torch.float32).expand(env.num_envs)
        if not wrench[mask].isfinite().all() or durations[mask].isnan().any():
            found.append(f"pushes {body} with a wrench that is not finite, or for a duration that is NaN")

    vars(env)["push"] = note
    try:
        yield found
    finally:
        del vars(env)["push"]


def _find_bent_quaternion(env: Env, worlds: Worlds) -> str | None:
    """Check the quaternions of free and ball joints: MuJoCo would make something else of them."""
    for columns in env.engine.layout.quaternions:
        lengths = worlds.qpos[worlds.mask, columns].norm(dim=1)
        wrong = lengths[(lengths - 1).abs() > 0.1]
        if len(wrong):
            return (
                f"left a quaternion of length {float(wrong[0]):.3g} in worlds.qpos[:, {columns.start}:{columns.stop}]; "
                "its length must be 1"
            )
    return None


def _describe_error(
    func: Callable[..., Any], error: BaseException, env: Env, params: dict[str, Any], args: tuple[Any, ...] = ()
) -> str:
    """Say what a function raised; of a built-in one rather the sizes of what its parameters name."""
    if isinstance(error, RequestError):
        return str(error)
    if not func.__module__.startswith("mjtrain.mdp"):
        return describe_exception(func, error)
    sizes = [f"{name} has {size}" for name, value in params.items() if (size := _measure_param(env, name, value))]
    if func.__name__.startswith("steer") and args:
        return f"{func.__name__}() cannot use {len(args[0])} values; give bounds of all that it commands in controls"
    named = "; ".join(sizes) or ", ".join(f"{name} is {value!r}" for name, value in params.items())
    return f"{func.__name__}() {_UNUSABLE}: {named}"


def _measure_param(env: Env, name: str, value: Any) -> str:
    """Say how many columns a parameter stands for, or how many values it has; empty for a number or a string."""
    kind = name.rsplit("_", 1)[-1].removesuffix("s")
    read = {"joint": env.qpos, "object": env.qpos, "sensor": env.sensor, "command": env.command}.get(kind)
    if read is None or value is None:  # an optional sensor
        return f"{len(value)} values" if isinstance(value, tuple | list) else ""
    try:
        return f"{read(value).shape[1]} columns"
    except (RequestError, IndexError):  # a name that does not exist, or a command that is wrong itself
        return ""


def _find_other_size(kind: Kind, name: str, env: Env, value: torch.Tensor, args: tuple[Any, ...]) -> str | None:
    if kind == "refine" and args[1] is not None and value.shape != args[1].shape:
        return f"returned {value.shape[1]} columns, and {args[1].shape[1]} at the start"
    if kind == "controller" and value.shape[1] != env.num_actions:
        return f"returned {value.shape[1]} columns; an action has {env.num_actions}"
    if kind == "steer" and value.shape != (drawn := env.drawn_command(name.split(".")[1])).shape:
        return f"returned {value.shape[1]} columns; a draw of this command has {drawn.shape[1]}"
    return None


def _substitute(kind: Kind, env: Env, args: tuple[Any, ...]) -> torch.Tensor:
    if kind == "refine":
        return (args[0] if args[1] is None else args[1]).clone()
    if kind in ("termination", "success"):
        return torch.zeros(env.num_envs, dtype=torch.bool)
    if kind == "controller":
        return torch.zeros(env.num_envs, env.num_actions)
    if kind == "steer":
        return torch.zeros(())
    return torch.zeros(env.num_envs, 1) if kind in ("observation", "command") else torch.zeros(env.num_envs)


def _is_finite(value: torch.Tensor) -> bool:
    """Tell whether all numbers are finite. If one is not, the sum is not either, and takes less time to compute."""
    return math.isfinite(value.sum()) or bool(value.isfinite().all())


def _find_infinite(value: torch.Tensor, env: Env) -> str | None:
    """Describe numbers that are not finite in worlds that the NaN guard would not reset."""
    state, most = env.state, min(env.config.nan_guard.max_velocity, MAX_VALUE)
    valid = (state.qpos.abs() <= MAX_VALUE).all(dim=1) & (state.qvel.abs() <= most).all(dim=1)
    value = value[valid & state.sensordata.isfinite().all(dim=1) & ~env.engine.failed]
    broken = ~value.isfinite()
    if not broken.any():
        return None
    numbers = sorted({str(number) for number in value[broken].tolist()})
    return f"returned {' and '.join(numbers)} in {int(broken.sum())} of {value.numel()} values; give finite numbers"


def without_consequences(problems: dict[str, str]) -> dict[str, str]:
    """Leave out what may only come from a command, an event or a level that is wrong itself."""
    wrong = [name for name in problems if name.startswith(_UPSTREAM)]
    if not wrong:
        return problems

    def is_consequence(name: str) -> bool:
        """Whether the term is none of those, or a part of one of them, such as the refine of a command."""
        return name not in wrong or any(name.startswith(f"{other}.") for other in wrong)

    # An error of a command is raised in every term that reads it.
    of_commands = {problem: name for name, problem in reversed(problems.items()) if name.startswith("commands.")}
    return {
        name: problem
        for name, problem in problems.items()
        if not (is_consequence(name) and any(word in problem for word in _CONSEQUENCES))
        and of_commands.get(problem, name) == name
    }
