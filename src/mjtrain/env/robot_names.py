"""Whether a robot has all the parts that a task names."""

import re
from collections.abc import Callable, Iterable, Iterator

from mjtrain.config import EnvConfig
from mjtrain.env.term_check import PLURALS, list_functions
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.layout import Layout

_FREE = 7
"""Columns of a free joint in qpos."""

_KINDS: dict[str, Callable[[Layout], Iterable[str]]] = {
    "joint": lambda layout: layout.qpos,
    "object": lambda layout: [name for name in layout.qpos if layout.qpos.width(name) == _FREE],
    "sensor": lambda layout: layout.sensors,
    "actuator": lambda layout: layout.actuators | layout.controls,
    "body": lambda layout: layout.bodies,
    "geom": lambda layout: layout.geoms,
}


def matched_names(kind: str, patterns: Iterable[str], layout: Layout) -> list[str]:
    """Return the names of parts of a kind, such as sensor, that regular expressions match whole."""
    return [name for name in _KINDS[kind](layout) if any(re.fullmatch(pattern, name) for pattern in patterns)]


def check_robot_names(config: EnvConfig, layout: Layout) -> None:
    """Compare the names in the parameters of all terms with those of the robot.

    A parameter called joint, object (a free joint), sensor, actuator, body or geom holds a name. One called joints,
    objects, sensors, actuators, bodies or geoms holds regular expressions, matched whole; over joints they match
    hinges and slides only. The last word of the parameter's name counts, as in foot_sensors.

    Raises:
        RequestError: Some are missing; the message lists all of them and the terms that name them. Or an expression
            over joints matches free or ball joints only.
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
        raise RequestError(
            f"--env.robot {config.robot.label}: this task needs what the robot lacks: {'. '.join(lists)}"
        )


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
                for pattern in value:
                    yield function.name, PLURALS[last], pattern, True
