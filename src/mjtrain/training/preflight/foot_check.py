"""Whether the sensors that terms read of feet are in the same order, foot by foot."""

from collections.abc import Iterator

from mjtrain.config import EnvConfig
from mjtrain.env.term_check import TermFunction, list_functions
from mjtrain.mdp import gait
from mjtrain.sim.engines.native import NativeEngine
from mjtrain.sim.robots.measured import are_in_line, find_sensor_body

_LISTS = ("contact_sensors", "position_sensors", "velocity_sensors")


def find_mixed_feet(config: EnvConfig, engine: NativeEngine) -> Iterator[str]:
    """Yield a line for each term that takes the readings of one foot for those of another."""
    offsets: dict[tuple[str, int], tuple[str, float]] = {}
    for term in list_functions(config):
        if term.func.__module__ != gait.__name__ or not term.name.startswith("rewards."):
            continue
        feet = {name: bodies for name in _LISTS if (bodies := _find_bodies(term, name, engine)) is not None}
        yield from _find_mixed_pairs(term, feet, engine)
        for bodies in feet.values():
            for body, offset in zip(bodies, term.params.get("offsets", ()), strict=False):
                place, other = offsets.setdefault((term.params.get("command", ""), body), (term.name, offset))
                if other != offset:
                    name = engine.model.body(body).name
                    yield (
                        f"--env.{term.name}.params.offsets: {name} has {offset:g}, and {other:g} in {place}; give "
                        "sensors and offsets in the same order"
                    )
                    return


def _find_bodies(term: TermFunction, name: str, engine: NativeEngine) -> list[int] | None:
    """Return the bodies of sensors; None where the term has none, or one of them is not on a body."""
    known = {engine.model.sensor(index).name for index in range(engine.model.nsensor)}
    sensors = term.params.get(name)
    if not sensors or not set(sensors) <= known:
        return None
    bodies = [find_sensor_body(engine.model, sensor) for sensor in sensors]
    return None if None in bodies else [body for body in bodies if body is not None]


def _find_mixed_pairs(term: TermFunction, feet: dict[str, list[int]], engine: NativeEngine) -> Iterator[str]:
    (first, bodies), *others = feet.items() or [("", [])]
    for name, theirs in others:
        for index, (body, other) in enumerate(zip(bodies, theirs, strict=False)):
            if not are_in_line(engine.model, body, other):
                mine, its = engine.model.body(body).name, engine.model.body(other).name
                yield (
                    f"--env.{term.name}.params.{name} {term.params[name][index]}: is on {its}, and "
                    f"{term.params[first][index]} of {first} on {mine}; give both in the same order"
                )
                return
