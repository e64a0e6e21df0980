"""Whether a robot has all that a task talks about."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mjtrain.config import EnvConfig
from mjtrain.engines.layout import Layout, match_names
from mjtrain.errors import RequestError

_KINDS: dict[str, Callable[[Layout], Iterable[str]]] = {
    "joint": lambda layout: layout.qpos,
    "sensor": lambda layout: layout.sensors,
    "actuator": lambda layout: layout.actuators,
    "body": lambda layout: layout.bodies,
    "geom": lambda layout: layout.geoms,
}
_PLURALS = {"joints": "joint", "sensors": "sensor", "actuators": "actuator", "bodies": "body", "geoms": "geom"}


def check_robot_names(config: EnvConfig, layout: Layout) -> None:
    """Compare the names in the parameters of all terms with those of the robot.

    A parameter called joint, sensor, actuator, body or geom holds a name; joints, sensors, actuators, bodies or geoms
    hold regular expressions, matched whole. So do names that end so, as in foot_sensors.

    Raises:
        RequestError: Some are missing; the message lists all of them and who asks for them.
    """
    missing: dict[str, dict[str, list[str]]] = {}
    for term, kind, wanted, is_pattern in _wanted(config):
        there = list(_KINDS[kind](layout))
        if is_pattern:
            try:
                match_names([wanted], there, kind)
                continue
            except RequestError:
                pass
        elif wanted in there:
            continue
        missing.setdefault(kind, {}).setdefault(wanted, []).append(term)
    if missing:
        lists = [
            f"{kind} {', '.join(f'{name} (for {users[0]})' for name, users in names.items())}; it has "
            f"{', '.join(_KINDS[kind](layout)) or 'none'}"
            for kind, names in missing.items()
        ]
        raise RequestError(f"--env.robot {config.robot}: this task needs what the robot lacks: {'. '.join(lists)}")


def _wanted(config: EnvConfig) -> Iterator[tuple[str, str, str, bool]]:
    """Yield who asks, for what kind of part, by which name or pattern."""
    for name, term in config.actions.items():
        for pattern in term.actuators:
            yield f"actions.{name}", "actuator", pattern, True
    groups: dict[str, dict[str, Any]] = {
        **{f"observations.{name}": dict(terms) for name, terms in config.observations.items()},
        **{
            kind: dict(getattr(config, kind))
            for kind in ("rewards", "terminations", "commands", "events", "curriculum")
        },
        **{f"commands.{name}.errors": dict(term.errors) for name, term in config.commands.items()},
    }
    for group, terms in groups.items():
        for name, term in terms.items():
            for key, value in {**term.params, **getattr(term, "refine_params", {})}.items():
                last = key.rsplit("_", 1)[-1]
                if last in _KINDS and isinstance(value, str):
                    yield f"{group}.{name}", last, value, False
                elif last in _PLURALS:
                    for pattern in value:
                        yield f"{group}.{name}", _PLURALS[last], pattern, True
