"""Whether the functions of a config's terms take the parameters that the config has for them.

Importing this module imports neither torch nor the functions' modules.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mjtrain.config import (
    CommandTerm,
    CurriculumTerm,
    EnvConfig,
    ErrorTerm,
    EventTerm,
    ObservationTerm,
    RewardTerm,
    TerminationTerm,
)
from mjtrain.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class TermFunction:
    """One function of a config and what it will be called with."""

    name: str
    """Place in the config, such as rewards.slip or commands.velocity.refine."""

    func: Callable[..., Any]
    """The function."""

    params: dict[str, Any]
    """Its keyword arguments."""

    leading: tuple[str, ...]
    """What it gets before them."""


def check_terms(config: EnvConfig) -> None:
    """Compare the parameters of all terms with the signatures of their functions.

    Raises:
        RequestError: A function has no such parameter, lacks one, or is no function. One line names all of them.
    """
    problems = [problem for term in list_functions(config) if (problem := _find_problem(term))]
    problems += [
        f"--env.events.{name}.mode {term.mode}: choose from startup, reset, interval"
        for name, term in config.events.items()
        if term.mode not in ("startup", "reset", "interval")
    ]
    if problems:
        raise RequestError("; ".join(problems))


def list_functions(config: EnvConfig) -> Iterator[TermFunction]:
    """Yield every function of a config.

    Raises:
        RequestError: A term is not of the kind that its place in the config asks for.
    """
    groups: list[tuple[str, type, tuple[str, ...], dict[str, Any]]] = [
        *((f"observations.{name}", ObservationTerm, ("env",), terms) for name, terms in config.observations.items()),
        ("rewards", RewardTerm, ("env",), config.rewards),
        ("terminations", TerminationTerm, ("env",), config.terminations),
        ("commands", CommandTerm, ("env",), config.commands),
        *((f"commands.{name}.errors", ErrorTerm, ("env",), term.errors) for name, term in config.commands.items()),
        ("events", EventTerm, ("env", "worlds"), config.events),
        ("curriculum", CurriculumTerm, ("env", "level"), config.curriculum),
    ]
    for group, kind, leading, terms in groups:
        for key, term in terms.items():
            name = f"{group}.{key}"
            if not isinstance(term, kind):
                raise RequestError(f"--env.{name}: is {_show(term)}, not a {kind.__name__}")
            yield TermFunction(name=name, func=term.func, params=term.params, leading=leading)
    for key, term in config.commands.items():
        name = f"commands.{key}"
        if term.refine is not None:
            leading = ("env", "drawn", "before")
            yield TermFunction(name=f"{name}.refine", func=term.refine, params=term.refine_params, leading=leading)
        if term.steer is not None:
            yield TermFunction(name=f"{name}.steer", func=term.steer, params={}, leading=("env", "values"))


def _find_problem(term: TermFunction) -> str | None:
    flag, func, params = f"--env.{term.name}", term.func, term.params
    if not callable(func) or not hasattr(func, "__qualname__"):  # without that name no run could record it
        return f"{flag}: {_show(func)} is not a function; give one that was made with def"
    try:
        signature = inspect.signature(func)
    except (TypeError, ValueError):  # a built-in function that does not say
        return None
    function = f"{func.__name__}()"
    parameters = signature.parameters.values()
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < len(term.leading) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return f"{flag}: {function} must take {', '.join(term.leading)} before its parameters"
    named = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in positional[: len(term.leading)]
    ]
    takes = f"it takes {', '.join(p.name for p in named) or 'none'}"
    unknown = [name for name in params if name not in [p.name for p in named]]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        return f"{flag}: {function} has no parameter {', '.join(unknown)}; {takes}"
    missing = [p.name for p in named if p.default is p.empty and p.name not in params]
    if missing:
        return f"{flag}: {function} needs the parameter {', '.join(missing)}; {takes}"
    try:
        signature.bind(*term.leading, **params)
    except TypeError as error:
        return f"{flag}: {function} cannot be called: {error}"
    return None


def _show(value: Any) -> str:
    return " ".join(repr(value).split())
