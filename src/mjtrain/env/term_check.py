"""Checks that the functions of a config's terms take its parameters, and that the robot has the parts that it names.

Importing this module imports neither torch nor the functions' modules.
"""

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from mjtrain.config import EnvConfig, GeomConfig
from mjtrain.config.limits import find_type_problems, show
from mjtrain.runtime.errors import RequestError, refuse, spaced

if TYPE_CHECKING:
    from mjtrain.sim.robots.layout import Layout

_HELPERS = {
    "ObservationTerm": "observation(func, …)",
    "RewardTerm": "reward(func, weight, …)",
    "TerminationTerm": "termination(func, …) or truncation(func, …)",
    "SuccessTerm": "success(func, …)",
    "CommandTerm": "command(func, …)",
    "ErrorTerm": "error(func, unit, …)",
    "EventTerm": "reset_event(func, …), startup_event(func, …) or interval_event(func, interval_s, …)",
    "CurriculumTerm": "curriculum(func, …)",
    "ControllerTerm": "controller(func, …)",
}
"""How to make a term of each kind."""


PLURALS = {
    "joints": "joint",
    "objects": "object",
    "sensors": "sensor",
    "actuators": "actuator",
    "bodies": "body",
    "geoms": "geom",
}
"""Last words of parameters that hold regular expressions over names of the robot, and of those that hold one name."""

_compile = cache(partial(compile, filename="<annotation>", mode="eval"))

_FREE = 7
"""Columns of a free joint in qpos."""

_KINDS: "dict[str, Callable[[Layout], Iterable[str]]]" = {
    "joint": lambda layout: layout.qpos,
    "object": lambda layout: [name for name in layout.qpos if layout.qpos.width(name) == _FREE],
    "sensor": lambda layout: layout.sensors,
    "actuator": lambda layout: layout.actuators | layout.controls,
    "body": lambda layout: layout.bodies,
    "geom": lambda layout: layout.geoms,
}


@dataclass(frozen=True, kw_only=True)
class TermFunction:
    """One function of a config and what it will be called with."""

    name: str
    """Place in the config, such as rewards.slip or commands.velocity.refine."""

    func: Callable[..., Any]
    params: dict[str, Any]
    leading: tuple[str, ...]
    """What it gets before them."""


def check_terms(config: EnvConfig, *, limits: bool = True) -> None:
    """Compare the parameters of all terms with the signatures of their functions.

    Args:
        limits: False lets pass what is only out of its range or has no effect, for configs of recorded runs.
    """
    refuse(find_term_problems(config, limits=limits))


def find_term_problems(config: EnvConfig, *, limits: bool = True) -> list[str]:
    """Return what `check_terms` would raise, a line for each problem."""
    problems = [_add_hint(problem) for problem in find_type_problems(EnvConfig, config, "--env", limits=limits)]
    if problems:  # nothing else could be read
        return problems
    return [
        *(p for term in list_functions(config) for p in _find_function_problems(term, limits=limits)),
        *(_find_wrong_settings(config) if limits else ()),
        *_find_unknown_successes(config),
    ]


def list_functions(config: EnvConfig) -> Iterator[TermFunction]:
    """Yield every function of a config whose terms are of the kinds that their places ask for."""
    for key, term in config.actions.items():
        if term.base is not None:
            yield TermFunction(name=f"actions.{key}.base", func=term.base, params=term.base_params, leading=("env",))
    for group, terms in _list_groups(config):
        leading = {"events": ("env", "worlds"), "curriculum": ("env", "level")}.get(group, ("env",))
        for key, term in terms.items():
            yield TermFunction(name=f"{group}.{key}", func=term.func, params=term.params, leading=leading)
    for key, term in config.commands.items():
        name = f"commands.{key}"
        if term.refine is not None:
            leading = ("env", "drawn", "before")
            yield TermFunction(name=f"{name}.refine", func=term.refine, params=term.refine_params, leading=leading)
        if term.evaluated_params:
            params = {**term.params, **term.evaluated_params}
            yield TermFunction(name=f"{name}.evaluated", func=term.func, params=params, leading=("env",))
        if term.steer is not None:
            yield TermFunction(name=f"{name}.steer", func=term.steer, params={}, leading=("env", "values"))


def _list_groups(config: EnvConfig) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the mappings of a config whose values are terms with a function, by their places."""
    return [
        *((f"observations.{name}", terms) for name, terms in config.observations.items()),
        ("rewards", config.rewards),
        ("terminations", config.terminations),
        ("successes", config.successes),
        ("commands", config.commands),
        *((f"commands.{name}.errors", term.errors) for name, term in config.commands.items()),
        ("events", config.events),
        ("curriculum", config.curriculum),
        ("controllers", config.controllers),
    ]


def _add_hint(problem: str) -> str:
    kind = problem.rpartition(" ")[2]
    return f"{problem}; make one with mjtrain.mdp.{_HELPERS[kind]}" if kind in _HELPERS else problem


def find_empty_parts(config: EnvConfig) -> Iterator[str]:
    """Yield what an environment can be without, but a training cannot."""
    for name in ("actions", "observations", "rewards"):
        if not getattr(config, name):
            yield f"--env.{name}: is empty; give at least one {name.removesuffix('s')} term"


def find_unfit_names(config: EnvConfig) -> Iterator[str]:
    """Yield the names of terms and groups that flags and the names of metrics cannot hold, such as a/b."""
    groups = (("actions", config.actions), ("observations", config.observations), *_list_groups(config))
    for group, terms in groups:
        for name in terms:
            if not re.fullmatch(r"[\w.-]+", name):
                yield f"--env.{group}: the name {name!r} is not valid; use letters, digits and _, as in left_foot"


def _find_wrong_settings(config: EnvConfig) -> Iterator[str]:
    """Yield settings that their own fields allow, but that do not fit together or have no effect."""
    for group, terms in config.observations.items():
        if not terms:
            yield f"--env.observations.{group}: is empty; give at least one observation term"
    for name, term in config.actions.items():
        if term.clip[0] == term.clip[1]:
            yield f"--env.actions.{name}.clip {spaced(term.clip)}: every action is the same; give two bounds"
        if term.base is not None and (term.relative or term.from_home or term.offset):
            yield f"--env.actions.{name}.base: replaces the offset, so relative, from-home and offset must be off"
    for name, term in config.curriculum.items():
        (first, last), (low, high) = term.initial, term.bounds
        if not low <= first <= last <= high:
            yield f"--env.curriculum.{name}.initial {first} {last}: must be within its bounds, {low} to {high}"
    for name, term in config.commands.items():
        if term.resample_on in config.successes and term.before_reset:
            yield (
                f"--env.commands.{name}.resample-on {term.resample_on}: with before_reset a command is drawn only "
                "where an episode begins; leave one of them out"
            )


def find_idle_settings(config: EnvConfig) -> Iterator[str]:
    """Yield settings of actions and of the robot that have no effect."""
    for name, term in config.actions.items():
        if term.base is None and term.base_params:
            yield f"--env.actions.{name}.base-params: need base, the function that takes them"
    robot = config.robot
    for name in robot.options.disable:
        if name in robot.options.enable:
            yield f"--env.robot.options.disable {name}: is in enable too; leave it out of one of them"
    for name, geoms in robot.geoms.items():
        flag, changes = f"--env.robot.geoms.{name}", dataclasses.replace(geoms, geoms=(), bodies=())
        if changes == GeomConfig():
            yield f"{flag}: changes nothing; give what the geoms get, such as collision or friction"
        if None not in (geoms.collision, geoms.contype, geoms.conaffinity):
            yield f"{flag}.collision {geoms.collision}: contype and conaffinity replace it; leave it out"
    for name, actuators in robot.actuators.items():
        if not actuators.joints:
            yield f"--env.robot.actuators.{name}.joints: is empty; give expressions over the joints that it drives"
    for name, camera in robot.cameras.items():
        if camera.target and not camera.mode.startswith("target"):
            yield f"--env.robot.cameras.{name}.target {camera.target}: needs mode targetbody or targetbodycom"


def _find_unknown_successes(config: EnvConfig) -> Iterator[str]:
    for name, term in config.commands.items():
        if term.resample_on is not None and term.resample_on not in config.successes:
            there = ", ".join(config.successes) or "none"
            yield f"--env.commands.{name}.resample-on {term.resample_on}: is not a success term; available: {there}"


def _find_function_problems(term: TermFunction, *, limits: bool) -> list[str]:
    """Return what is wrong with the function of a term, or else with the types of its parameters."""
    is_named = callable(term.func) and hasattr(term.func, "__qualname__")  # without that name no run could record it
    if not is_named or isinstance(term.func, type):
        return [f"--env.{term.name}: {show(term.func)} is not a function; give one that was made with def"]
    try:
        signature = inspect.signature(term.func)
    except (TypeError, ValueError):  # a built-in function that does not say
        return []
    problem = _find_wrong_call(term, signature)
    return [problem] if problem else _find_wrong_params(term, signature.parameters, limits=limits)


def _find_wrong_params(term: TermFunction, parameters: Mapping[str, inspect.Parameter], *, limits: bool) -> list[str]:
    found = []
    for name, value in term.params.items():
        last = name.rsplit("_", 1)[-1]
        if last in PLURALS or last in PLURALS.values():
            kind: Any = tuple[str, ...] if last in PLURALS else str
        else:
            kind = read_annotation(term.func, parameters[name]) if name in parameters else Any
        if value is None and name in parameters and parameters[name].default is None:
            continue
        problems = find_type_problems(kind, value, f"--env.{term.name}.params.{name}", limits=limits)
        is_built_in = str(getattr(term.func, "__module__", "")).startswith("mjtrain.mdp.")
        if limits and is_built_in and not problems and _has_nan(value):  # comparisons with NaN are always false
            problems = [f"--env.{term.name}.params.{name} {spaced(value)}: must not be NaN"]
        found += problems
    low, high = (term.params.get(name) for name in ("low", "high"))
    if limits and isinstance(low, float | int) and isinstance(high, float | int) and low > high:
        words = f"is more than high, {high:.15g}; give the lower bound first"
        found.append(f"--env.{term.name}.params.low {low:.15g}: {words}")
    return found


def _has_nan(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(_has_nan(item) for item in value)
    return isinstance(value, float) and math.isnan(value)


def read_annotation(func: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter; Any if there is none, or if it cannot be read at run time."""
    kind = parameter.annotation
    if isinstance(kind, str):  # of a module with `from __future__ import annotations`
        try:
            kind = eval(_compile(kind.strip()), getattr(inspect.unwrap(func), "__globals__", {}))
        except Exception:  # a name that only a type checker knows
            return Any
    return Any if kind is parameter.empty else kind


def _find_wrong_call(term: TermFunction, signature: inspect.Signature) -> str | None:
    flag, function, params = f"--env.{term.name}", f"{term.func.__name__}()", term.params
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


def matched_names(kind: str, patterns: Iterable[str], layout: "Layout") -> list[str]:
    """Return the names of parts of a kind, such as sensor, that regular expressions match whole."""
    return [name for name in _KINDS[kind](layout) if any(re.fullmatch(pattern, name) for pattern in patterns)]


def check_robot_names(config: EnvConfig, layout: "Layout") -> None:
    """Compare the names in the parameters of all terms with those of the robot.

    A parameter called joint, object (a free joint), sensor, actuator, body or geom holds a name. One called joints,
    objects, sensors, actuators, bodies or geoms holds regular expressions, matched whole; over joints they match
    hinges and slides only. The last word of the parameter's name counts, as in foot_sensors.
    """
    missing: dict[str, dict[str, list[str]]] = {}
    for term, kind, wanted, is_pattern in _wanted(config):
        there = list(_KINDS[kind](layout))
        if is_pattern:
            try:
                re.compile(wanted)
            except re.error as error:
                raise RequestError(
                    f"--env.{term}: {wanted!r} is not a valid regular expression over {kind} names: {error}; "
                    "'.*' matches all"
                ) from error
            hits = [name for name in there if re.fullmatch(wanted, name)]
            if kind == "joint" and hits and not any(layout.qpos.width(name) == 1 for name in hits):
                raise RequestError(f"--env.{term}: {layout.qpos.describe_unmatched(wanted, hits)}")
            if hits:
                continue
        elif wanted in there:
            continue
        missing.setdefault(kind, {}).setdefault(wanted, []).append(term)
    if missing:
        lists = [
            f"{kind} {', '.join(f'{name} (for {users[0]})' for name, users in names.items())}; it has "
            f"{', '.join(_KINDS[kind](layout)) or 'none'}"
            for kind, names in missing.items()
        ]
        lacks = f"this task needs what the robot lacks: {'. '.join(lists)}"
        if config.robot.file.lower().endswith(".urdf"):
            lacks += "; a URDF has no actuators, sensors and keyframes: mjtrain import-robot makes MJCF with them"
        raise RequestError(f"--env.robot {config.robot.label}: {lacks}")


def _wanted(config: EnvConfig) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the term, the kind of part, the name or pattern, and whether it is a pattern."""
    for name, term in config.actions.items():
        for pattern in term.actuators:
            yield f"actions.{name}", "actuator", pattern, True
    for name, term in config.commands.items():
        if term.object:
            yield f"commands.{name}.object", "object", term.object, False
    off = {f"rewards.{name}" for name, term in config.rewards.items() if not term.weight}
    for function in list_functions(config):
        if function.name in off:
            continue
        for key, value in function.params.items():
            last = key.rsplit("_", 1)[-1]
            if last in _KINDS and isinstance(value, str):
                yield function.name, last, value, False
            elif last in PLURALS:
                for pattern in value or ():  # None is a default of functions that may need none
                    yield function.name, PLURALS[last], pattern, True
