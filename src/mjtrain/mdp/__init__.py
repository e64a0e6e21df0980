"""What tasks are made of: term functions by subject, and helpers that make terms of them.

    from mjtrain.mdp import observation, observations, reward, rewards, torch

Submodules hold the functions: observations, rewards, terminations, events, randomization, appearance,
root, velocity, gait, reach, targets, objects, tracking, and reference, which tracking reads.
Neither this package nor its submodules import torch. `torch` of this package is imported by its first use; `import
torch` works as well, and costs the help page of a task the time. `Env` and `Worlds`, which are for annotations, import
torch.

A helper takes a term function and its parameters, and returns the term. A type checker compares the parameters with the
signature of the function. Parameters that are left out are filled in with their defaults, so that they become flags and
are recorded. All other fields of a term are set by its method `replace`.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from mjtrain.config import (
    CommandTerm,
    ControllerTerm,
    CurriculumTerm,
    ErrorTerm,
    EventTerm,
    ObservationTerm,
    RewardTerm,
    SuccessTerm,
    TerminationTerm,
)
from mjtrain.config.plain import default_params
from mjtrain.env.sampling import uniform
from mjtrain.runtime.deferred_imports import torch
from mjtrain.sim import rotations

if TYPE_CHECKING:
    from torch import Tensor

    from mjtrain.env.env import Env
    from mjtrain.env.events import Worlds

P = ParamSpec("P")

_LAZY = {"Env": "mjtrain.env.env", "Worlds": "mjtrain.env.events"}

__all__ = [
    "Env",
    "Worlds",
    "command",
    "controller",
    "curriculum",
    "error",
    "interval_event",
    "observation",
    "refined",
    "reset_event",
    "reward",
    "rotations",
    "startup_event",
    "success",
    "termination",
    "torch",
    "truncation",
    "uniform",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def observation(func: "Callable[Concatenate[Env, P], Tensor]", /, *args: P.args, **params: P.kwargs) -> ObservationTerm:
    """Make an observation term; its noise, scale and so on are set by `replace`."""
    return ObservationTerm(func=func, params=_bind(func, 1, args, params))


def reward(
    func: "Callable[Concatenate[Env, P], Tensor]", weight: float, /, *args: P.args, **params: P.kwargs
) -> RewardTerm:
    """Make a reward term: weight * func * step_dt is added to the reward."""
    return RewardTerm(func=func, weight=weight, params=_bind(func, 1, args, params))


def termination(func: "Callable[Concatenate[Env, P], Tensor]", /, *args: P.args, **params: P.kwargs) -> TerminationTerm:
    """Make a termination term for a failure: the value of the state after it is zero."""
    return TerminationTerm(func=func, params=_bind(func, 1, args, params))


def truncation(func: "Callable[Concatenate[Env, P], Tensor]", /, *args: P.args, **params: P.kwargs) -> TerminationTerm:
    """Make a termination term for an end that is not a failure, such as a time limit."""
    return TerminationTerm(func=func, params=_bind(func, 1, args, params), truncates=True)


def success(func: "Callable[Concatenate[Env, P], Tensor]", /, *args: P.args, **params: P.kwargs) -> SuccessTerm:
    """Make a success term; how long it must hold and what it measures are set by `replace`."""
    return SuccessTerm(func=func, params=_bind(func, 1, args, params))


def startup_event(
    func: "Callable[Concatenate[Env, Worlds, P], None]", /, *args: P.args, **params: P.kwargs
) -> EventTerm:
    """Make an event that happens once, at the start."""
    return EventTerm(func=func, params=_bind(func, 2, args, params), mode="startup")


def reset_event(func: "Callable[Concatenate[Env, Worlds, P], None]", /, *args: P.args, **params: P.kwargs) -> EventTerm:
    """Make an event that happens when an episode starts."""
    return EventTerm(func=func, params=_bind(func, 2, args, params), mode="reset")


def interval_event(
    func: "Callable[Concatenate[Env, Worlds, P], None]",
    interval_s: tuple[float, float],
    /,
    *args: P.args,
    **params: P.kwargs,
) -> EventTerm:
    """Make an event that happens again and again, after a random time between bounds in seconds."""
    return EventTerm(func=func, params=_bind(func, 2, args, params), mode="interval", interval_s=interval_s)


def command(func: "Callable[Concatenate[Env, P], Tensor]", /, *args: P.args, **params: P.kwargs) -> CommandTerm:
    """Make a command term; how often it is drawn and so on is set by `replace`."""
    return CommandTerm(func=func, params=_bind(func, 1, args, params))


def refined(
    term: CommandTerm,
    func: "Callable[Concatenate[Env, Tensor, Tensor | None, P], Tensor]",
    /,
    *args: P.args,
    **params: P.kwargs,
) -> CommandTerm:
    """Return a command term whose draws a function refines in each env step."""
    return term.replace(refine=func, refine_params=_bind(func, 3, args, params))


def error(func: "Callable[Concatenate[Env, P], Tensor]", unit: str, /, *args: P.args, **params: P.kwargs) -> ErrorTerm:
    """Make an error of a command, in a unit."""
    return ErrorTerm(func=func, unit=unit, params=_bind(func, 1, args, params))


def curriculum(
    func: "Callable[Concatenate[Env, Tensor, P], Tensor]", /, *args: P.args, **params: P.kwargs
) -> CurriculumTerm:
    """Make a curriculum term; its first levels and its bounds are set by `replace`."""
    return CurriculumTerm(func=func, params=_bind(func, 2, args, params))


def controller(func: "Callable[Concatenate[Env, P], Tensor]", /, *args: P.args, **params: P.kwargs) -> ControllerTerm:
    """Make a controller that an actor can imitate before it learns."""
    return ControllerTerm(func=func, params=_bind(func, 1, args, params))


def _bind(func: Callable[..., Any], num_leading: int, args: tuple[Any, ...], params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters by name, with the defaults of missing ones; `check_terms` reports unknown ones."""
    try:
        names = list(inspect.signature(func).parameters)[num_leading:]
    except (TypeError, ValueError):
        names = []
    if len(args) > len(names):
        raise TypeError(f"{func} gets {len(args)} positional parameters and takes {len(names)}")
    given = {**default_params(func), **dict(zip(names, args, strict=False)), **params}
    ordered = [name for name in names if name in given]
    return {name: given[name] for name in (*ordered, *(name for name in given if name not in ordered))}
