"""What the terms of a task are used for: sensors of the wrong kind, and what is probably not meant."""

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

from mjtrain.config import EnvConfig
from mjtrain.config.limits import Reads
from mjtrain.env.env import Env
from mjtrain.env.term_check import PLURALS, TermFunction, list_functions, matched_names, read_annotation
from mjtrain.mdp import gait, objects, reach, rewards, root, targets, terminations, velocity
from mjtrain.runtime.errors import spaced
from mjtrain.sim.engines.native import NativeEngine
from mjtrain.sim.robots.layout import SensorKind
from mjtrain.sim.robots.measured import are_in_line, find_sensor_body
from mjtrain.sim.robots.plausibility import find_axis


def _of(module: ModuleType, *names: str) -> set[Callable[..., Any]]:
    return {getattr(module, name) for name in names}


PENALTIES = (
    _of(velocity, "lin_vel_z", "ang_vel_xy", "flat_orientation", "lin_vel_xy_error", "ang_vel_z_error")
    | _of(rewards, "action_rate", "action_acc", "action_energy", "joint_speed", "sensors_squared", "joint_deviation")
    | _of(rewards, "joint_pos_limits", "joint_vel_limits", "mechanical_power", "undesired_contacts")
    | _of(rewards, "joint_torques_squared", "joint_accelerations_squared")
    | _of(targets, "planar_distance", "joint_distance")
    | _of(gait, "feet_slide", "swing_load")
    | {root.flat_orientation, reach.distance, reach.angle, objects.distance, objects.angle}
)
"""Functions of which less is better."""

REWARDS = (
    _of(velocity, "track_lin_vel_xy", "track_ang_vel_z")
    | _of(root, "upright", "height_in_range", "reach_forward_velocity")
    | _of(gait, "feet_gait", "feet_clearance", "swing_posture")
    | _of(reach, "near_position", "near_orientation")
    | _of(targets, "near_planar", "near_joint")
    | _of(objects, "near_position", "near_orientation", "near_tool")
    | _of(rewards, "is_successful", "joint_in_range")
)
"""Functions of which more is better. Either way are those that are in neither: a cart may have to run backwards."""

_LIMITS = _of(terminations, "success_time_out", "terrain_out_of_bounds")
"""Ends that are not failures and do not depend on the length of the episode alone."""

_FAILURES = (
    _of(terminations, "joint_out_of_range", "joint_pos_out_of_limit", "bad_orientation", "illegal_contact")
    | {terminations.root_height_below_minimum, root.height_out_of_range, root.bad_orientation}
    | _of(objects, "dropped", "strayed")
)
"""Ends that are failures."""

_X, _Y, _Z = (1, 0, 0), (0, 1, 0), (0, 0, 1)

_AXES: dict[Callable[..., Any], dict[str, tuple[int, int, int]]] = {
    root.projected_gravity: {"joint": _Y},
    root.planar_lin_vel: {"x_joint": _X, "z_joint": _Z, "pitch_joint": _Y},
    root.base_height: {"joint": _Z},
    root.height_in_range: {"joint": _Z},
    root.height_out_of_range: {"joint": _Z},
}
"""Axes in the world of the slides and hinges that terms of a planar root are made for, by parameter."""

_ANY = ("user", "plugin")
"""Sensors that may measure anything."""

_FOOT_SENSORS = ("contact_sensors", "position_sensors", "velocity_sensors")
"""Parameters whose sensors must be in the same order, foot by foot."""


def without_idle_rewards(config: EnvConfig) -> EnvConfig:
    """Leave out rewards of weight 0, whose functions are not called: they may name what the robot lacks."""
    return replace(config, rewards={name: term for name, term in config.rewards.items() if term.weight})


def find_sensor_problems(config: EnvConfig, engine: NativeEngine) -> Iterator[tuple[str, str]]:
    """Yield terms and their sensors that measure something else than the functions need, see `limits.Reads`."""
    for term in list_functions(without_idle_rewards(config)):
        try:
            parameters = inspect.signature(term.func).parameters
        except (TypeError, ValueError):  # a built-in function that does not say
            continue
        for name, value in term.params.items():
            if value is None or name not in parameters:
                continue
            needs = [
                limit
                for limit in getattr(read_annotation(term.func, parameters[name]), "__metadata__", ())
                if isinstance(limit, Reads)
            ]
            if not needs:
                continue
            is_pattern = name.rsplit("_", 1)[-1] in PLURALS
            sensors = matched_names("sensor", value, engine.layout) if is_pattern else [value]
            for sensor in sensors:
                problem = _find_sensor_problem(engine.layout.sensor_kinds[sensor], needs[0])
                if problem is not None:
                    yield term.name, f"--env.{term.name}.params.{name} {sensor}: {problem} for {term.func.__name__}()"
                    break


def _find_sensor_problem(sensor: SensorKind, needs: Reads) -> str | None:
    kind, is_relative = sensor.type, sensor.is_relative
    if kind in _ANY or kind in (needs.relative_types if is_relative else needs.types):
        return None
    wanted = [*needs.types, *(f"{name} with a reference" for name in needs.relative_types if name not in needs.types)]
    frame = ""
    if kind in (*needs.types, *needs.relative_types):
        frame = " in the frame of its reference" if is_relative else " in the world's frame"
    return f"is a {kind}{frame}; give {needs.what} ({' or '.join(wanted)})"


def find_doubtful_terms(config: EnvConfig, env: Env, engine: NativeEngine) -> Iterator[str]:
    """Yield a line for each use of a term that is possible and yet probably not meant."""
    yield from _find_doubtful_signs(config)
    yield from _find_doubtful_ends(config, env)
    yield from _find_doubtful_levels(config)
    yield from _find_differing_gaits(config, env.step_dt)
    yield from _find_mixed_feet(config, engine)
    yield from _find_slow_commands(config)
    yield from _find_doubtful_times(config, env)
    yield from _find_turned_roots(config, engine)


def _find_turned_roots(config: EnvConfig, engine: NativeEngine) -> Iterator[str]:
    for term in list_functions(without_idle_rewards(config)):
        for name, wanted in _AXES.get(term.func, {}).items():
            axis = find_axis(engine.model, term.params[name])
            if axis is not None and math.dist(axis, wanted) > 1e-3:
                found = " ".join(f"{value:g}" for value in axis)
                yield (
                    f"--env.{term.name}.params.{name} {term.params[name]}: has the axis {found} in the world; "
                    f"{term.func.__name__}() is made for {spaced(wanted)}"
                )


def _find_doubtful_signs(config: EnvConfig) -> Iterator[str]:
    for name, term in config.rewards.items():
        if term.func in PENALTIES and term.weight > 0:
            yield (
                f"--env.rewards.{name}.weight {term.weight:g}: rewards what {term.func.__name__}() measures, which is "
                "usually a penalty; give a negative weight"
            )
        if term.func in REWARDS and term.weight < 0:
            yield (
                f"--env.rewards.{name}.weight {term.weight:g}: penalises what {term.func.__name__}() measures, which "
                "is usually a reward; give a positive weight"
            )
        fails = any(not end.truncates for end in config.terminations.values())
        if term.func is rewards.is_terminated and term.weight and not fails:
            yield f"--env.rewards.{name}: is always 0, because every termination term truncates"


def _find_doubtful_ends(config: EnvConfig, env: Env) -> Iterator[str]:
    timed = [name for name in config.terminations if _is_time_limit(config, env, name)]
    for name, term in config.terminations.items():
        function = f"{getattr(term.func, '__name__', 'the function')}()"
        if (name in timed or term.func in _LIMITS) and not term.truncates:
            yield (
                f"--env.terminations.{name}: {function} is not a failure, and the value of the last state counts as 0; "
                "use truncation(…)"
            )
        if term.func in _FAILURES and term.truncates:
            yield (
                f"--env.terminations.{name}: {function} is a failure, and the value of the last state still counts; "
                "use termination(…)"
            )
    others = [
        term
        for term in config.terminations.values()
        if term.func is terminations.success_time_out
        or (term.truncates and not term.func.__module__.startswith("mjtrain.mdp."))
    ]
    if not timed and not others:
        yield (
            f"--env.terminations: none is true after episode_length_s {config.episode_length_s:g}, so that only a "
            "failure ends an episode; add truncation(terminations.time_out)"
        )


def _is_time_limit(config: EnvConfig, env: Env, name: str) -> bool:
    """Whether a term is true where an episode has had its length, and not before."""
    term, steps = config.terminations[name], env.episode_step.clone()
    try:
        env.episode_step.fill_(1)
        before = term.func(env, **term.params)
        env.episode_step.fill_(env.max_episode_steps)
        return bool(term.func(env, **term.params).all()) and (env.max_episode_steps == 1 or not bool(before.any()))
    except Exception:  # a function may fail on steps that an episode does not reach
        return False
    finally:
        env.episode_step.copy_(steps)


def _find_doubtful_levels(config: EnvConfig) -> Iterator[str]:
    for name, term in config.curriculum.items():
        tracked = config.rewards.get(term.params.get("reward", ""))
        if term.func is not velocity.command_level or tracked is None:
            continue
        full = term.params["full"]
        if not math.isclose(full, tracked.weight, rel_tol=1e-3):
            yield (
                f"--env.curriculum.{name}.params.full {full:g}: the weight of rewards.{term.params['reward']}, its "
                f"reward per second at best, is {tracked.weight:g}"
            )


def _find_differing_gaits(config: EnvConfig, step_dt: float) -> Iterator[str]:
    """Find schedules of one command that differ or that the policy does not see, and strides that are too short."""
    first: dict[tuple[Any, ...], tuple[str, Any]] = {}
    clocks: dict[Any, set[float]] = {}
    terms = [term for term in list_functions(config) if term.func.__module__ == gait.__name__]
    for term in terms:
        if "frequency_hz" in term.params and term.params["frequency_hz"] * step_dt > 0.5:
            yield (
                f"--env.{term.name}.params.frequency_hz {term.params['frequency_hz']:g}: a stride is shorter than two "
                f"env steps, which last {step_dt:g} s each"
            )
        if "frequency_hz" in term.params:
            command, sensor = term.params["command"], term.params.get("velocity_sensor")
            place, other = first.setdefault((command, "velocity_sensor", None), (term.name, sensor))
            if other != sensor:
                yield f"--env.{term.name}.params.velocity_sensor {sensor}: is {other} in {place}; give the same"
        if term.func is gait.clock:
            clocks.setdefault(term.params["command"], set()).add(term.params["frequency_hz"])
    for term in terms:
        if not term.name.startswith("rewards."):
            continue
        command = term.params.get("command")
        for key in ("frequency_hz", "offsets", "duty"):
            if key not in term.params:
                continue
            value = term.params[key]
            feet = len(value) if key == "offsets" else None
            place, other = first.setdefault((command, key, feet), (term.name, value))
            if other != value:
                yield f"--env.{term.name}.params.{key} {spaced(value)}: is {spaced(other)} in {place}; give the same"
        seen = clocks.get(command, set())
        if seen and "frequency_hz" in term.params and term.params["frequency_hz"] not in seen:
            yield (
                f"--env.{term.name}.params.frequency_hz {term.params['frequency_hz']:g}: the clock that the policy "
                f"observes has {' and '.join(f'{value:g}' for value in sorted(seen))}; give the same"
            )


def _find_mixed_feet(config: EnvConfig, engine: NativeEngine) -> Iterator[str]:
    """Yield a line for each term that takes the readings of one foot for those of another."""
    offsets: dict[tuple[str, int], tuple[str, float]] = {}
    for term in list_functions(config):
        if term.func.__module__ != gait.__name__ or not term.name.startswith("rewards."):
            continue
        feet = {name: bodies for name in _FOOT_SENSORS if (bodies := _find_bodies(term, name, engine)) is not None}
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


def _find_slow_commands(config: EnvConfig) -> Iterator[str]:
    """Find velocities that a command cannot reach before the next draw."""
    for name, term in config.commands.items():
        if term.refine is not velocity.approach or term.func is not velocity.velocity_command:
            continue
        longest = min(term.resampling_s[1], config.episode_length_s)
        for key, change, unit in (("speed", "acceleration", "m/s"), ("turn", "turn_acceleration", "rad/s")):
            reached = term.refine_params[change] * longest
            if reached < term.params[key]:
                yield (
                    f"--env.commands.{name}.refine-params.{change} {term.refine_params[change]:g}: in {longest:g} s, "
                    f"until the next draw, the command reaches {reached:g} {unit}; params.{key} is "
                    f"{term.params[key]:g}"
                )


def _find_doubtful_times(config: EnvConfig, env: Env) -> Iterator[str]:
    timestep = env.engine.layout.timestep_s
    if timestep > 0.025:
        yield (
            f"--env.robot.timestep {timestep:g}: is long for a physics step, in s; 0.002 to 0.01 is usual, with more "
            "of them in an env step (--env.decimation)"
        )
    elif not 0.001 < env.step_dt <= 0.2:
        yield (
            f"--env.decimation {config.decimation}: an env step lasts {env.step_dt:g} s ({config.decimation} physics "
            f"steps of {timestep:g} s); 0.01 to 0.05 s is usual"
        )
    for name, term in config.successes.items():
        if term.hold_s > config.episode_length_s:
            yield (
                f"--env.successes.{name}.hold-s {term.hold_s:g}: is longer than an episode, episode_length_s "
                f"{config.episode_length_s:g}"
            )
    for group, terms in env.observe().items():
        if terms.ndim > 2 or not bool((terms.abs() > _HUGE).any()):
            continue
        widths = list(env.observation_widths(group).items())
        for (name, _), part in zip(widths, terms.split([width for _, width in widths], dim=1), strict=True):
            if part.isfinite().all() and bool((part.abs() > _HUGE).any()):
                yield (
                    f"--env.observations.{group}.{name}: reads {part.abs().max():.3g}, where networks need numbers "
                    "near 1; give a scale"
                )


_HUGE = 1e4
