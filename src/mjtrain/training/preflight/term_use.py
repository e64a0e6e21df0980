"""What the terms of a task are used for: settings that are probably not meant, or that have no effect."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any, Literal

from mjtrain.config import EnvConfig
from mjtrain.env.env import Env
from mjtrain.env.term_check import TermFunction, list_functions
from mjtrain.mdp import (
    events,
    gait,
    objects,
    randomization,
    reach,
    rewards,
    root,
    targets,
    terminations,
    tracking,
    velocity,
)
from mjtrain.runtime.errors import count, spaced
from mjtrain.sim.engines.native import NativeEngine
from mjtrain.sim.robots.layout import Layout
from mjtrain.sim.robots.measured import are_in_line, find_sensor_body
from mjtrain.sim.robots.plausibility import find_axis, is_hinge

_X, _Y, _Z = (1, 0, 0), (0, 1, 0), (0, 0, 1)

_AXES: dict[Callable[..., Any], dict[str, tuple[int, int, int]]] = {
    root.projected_gravity: {"joint": _Y},
    root.planar_lin_vel: {"x_joint": _X, "z_joint": _Z, "pitch_joint": _Y},
    root.base_height: {"joint": _Z},
    root.height_in_range: {"joint": _Z},
    root.height_out_of_range: {"joint": _Z},
}
"""Axes in the world of the slides and hinges that terms of a planar root are made for, by parameter."""

_FOOT_SENSORS = ("contact_sensors", "position_sensors", "velocity_sensors")
"""Parameters whose sensors must be in the same order, foot by foot."""

_ON_PATCHES = (events.spawn_on_patch, velocity.terrain_level, terminations.terrain_out_of_bounds)
"""Functions that need a generated ground; on another one they are always the same."""

_STEPPED = (velocity.command_level, velocity.terrain_level)
"""Functions whose levels rise by step."""

_SCALED: dict[Callable[..., Any], tuple[str, Literal["body", "dof", "actuator"], str]] = {
    randomization.mass: ("body_mass", "body", "bodies"),
    randomization.inertia: ("body_inertia", "body", "bodies"),
    randomization.armature: ("dof_armature", "dof", "joints"),
    randomization.damping: ("dof_damping", "dof", "joints"),
    randomization.effort_limits: ("actuator_forcerange", "actuator", "actuators"),
}
"""What functions scale: the field of the model, the kind of its rows, and the parameter that chooses them."""

_LARGE_FACTOR = 5.0
"""A factor that is never less than this is a value, or a percentage."""

_HUGE = 1e4
"""Observation that no network can learn from."""


def _of(module: ModuleType, *names: str) -> set[Callable[..., Any]]:
    return {getattr(module, name) for name in names}


_PENALTIES = (
    _of(velocity, "lin_vel_z", "ang_vel_xy", "flat_orientation", "lin_vel_xy_error", "ang_vel_z_error")
    | _of(rewards, "action_rate", "action_acc", "action_energy", "joint_speed", "sensors_squared", "joint_deviation")
    | _of(rewards, "joint_pos_limits", "joint_vel_limits", "mechanical_power", "undesired_contacts")
    | _of(rewards, "joint_torques_squared", "joint_accelerations_squared")
    | _of(targets, "planar_distance", "joint_distance")
    | _of(gait, "feet_slide", "swing_load")
    | {root.flat_orientation, reach.distance, reach.angle, objects.distance, objects.angle}
)
"""Functions of which less is better."""

_REWARDS = (
    _of(velocity, "track_lin_vel_xy", "track_ang_vel_z")
    | _of(root, "upright", "height_in_range", "reach_forward_velocity")
    | _of(gait, "feet_gait", "feet_clearance", "swing_posture")
    | _of(reach, "near_position", "near_orientation")
    | _of(targets, "near_planar", "near_joint")
    | _of(objects, "near_position", "near_orientation", "near_tool")
    | _of(rewards, "is_successful", "joint_in_range")
)
"""Functions of which more is better. Either way are those that are in neither: a cart may have to run backwards."""

_TIMED = {terminations.success_time_out, tracking.motion_ended}
"""Ends that each episode comes to without a failure, and not only by its length."""

_LIMITS = {*_TIMED, terminations.terrain_out_of_bounds}
"""Ends that are not failures and do not depend on the length of the episode alone."""

_FAILURES = (
    _of(terminations, "joint_out_of_range", "joint_pos_out_of_limit", "bad_orientation", "illegal_contact")
    | {terminations.root_height_below_minimum, root.height_out_of_range, root.bad_orientation}
    | _of(objects, "dropped", "strayed")
)
"""Ends that are failures."""


def without_idle_rewards(config: EnvConfig) -> EnvConfig:
    """Leave out rewards of weight 0, whose functions are not called: they may name what the robot lacks."""
    return replace(config, rewards={name: term for name, term in config.rewards.items() if term.weight})


def find_doubtful_terms(config: EnvConfig, env: Env, engine: NativeEngine) -> Iterator[str]:
    """Yield a line for each use of a term that is possible and yet probably not meant, or that changes nothing."""
    functions = list(list_functions(config))
    gaits = [term for term in functions if term.func.__module__ == gait.__name__]
    yield from _find_doubtful_rewards(config)
    yield from _find_doubtful_ends(config, env, engine)
    yield from _find_doubtful_levels(config, functions)
    yield from _find_differing_gaits(gaits, env.step_dt)
    yield from _find_mixed_feet(gaits, engine)
    yield from _find_doubtful_commands(config, functions)
    yield from _find_doubtful_times(config, env)
    yield from _find_doubtful_readings(config, env)
    yield from _find_turned_roots(config, engine)
    yield from _find_doubtful_factors(config, env.engine.layout)


def _find_turned_roots(config: EnvConfig, engine: NativeEngine) -> Iterator[str]:
    for term in list_functions(without_idle_rewards(config)):
        for name, wanted in _AXES.get(term.func, {}).items():
            axis = find_axis(engine.model, term.params[name])
            if axis is not None and math.dist(axis, wanted) > 1e-3:
                yield (
                    f"--env.{term.name}.params.{name} {term.params[name]}: has the axis {spaced(axis)} in the world; "
                    f"{term.func.__name__}() is made for {spaced(wanted)}"
                )


def _find_doubtful_rewards(config: EnvConfig) -> Iterator[str]:
    fails = any(not end.truncates for end in config.terminations.values())
    for name, term in config.rewards.items():
        if term.func in _PENALTIES and term.weight > 0:
            yield (
                f"--env.rewards.{name}.weight {term.weight:g}: rewards what {term.func.__name__}() measures, which is "
                "usually a penalty; give a negative weight"
            )
        if term.func in _REWARDS and term.weight < 0:
            yield (
                f"--env.rewards.{name}.weight {term.weight:g}: penalises what {term.func.__name__}() measures, which "
                "is usually a reward; give a positive weight"
            )
        if term.func is rewards.is_terminated and term.weight and not fails:
            yield f"--env.rewards.{name}: is always 0, because every termination term truncates"
    if config.rewards and not any(term.weight for term in config.rewards.values()):
        yield "--env.rewards: the weight of every term is 0, so that nothing is rewarded"


def _find_doubtful_ends(config: EnvConfig, env: Env, engine: NativeEngine) -> Iterator[str]:
    """Find ends that are failures or not, as they should not be, and those that are never or always reached."""
    has_limit = False
    for name, term in config.terminations.items():
        place, func, params = f"--env.terminations.{name}", term.func, term.params
        function, is_timed = f"{getattr(func, '__name__', 'the function')}()", _is_time_limit(config, env, name)
        if (is_timed or func in _LIMITS) and not term.truncates:
            yield f"{place}: {function} is not a failure, and the last state's value counts as 0; use truncation(…)"
        if func in _FAILURES and term.truncates:
            yield f"{place}: {function} is a failure, and the value of the last state still counts; use termination(…)"
        has_limit |= is_timed or func in _TIMED or (term.truncates and not _is_built_in(func))
        if func is terminations.joint_out_of_range and (limit := params.get("limit")) is not None:
            joint, flag = params.get("joint", ""), f"{place}.params.limit {limit:g}"
            low, high = engine.layout.joint_range.get(joint, (-math.inf, math.inf))
            if limit >= max(-low, high):
                yield f"{flag}: joint {joint} has the range {low:.4g} to {high:.4g}, and never reaches it"
            elif limit > 2 * math.pi and is_hinge(engine.model, joint):
                yield f"{flag}: is more than a turn of joint {joint}, in rad"
        if func is terminations.root_height_below_minimum and config.terrain.kind != "robot":
            height_m = params.get("height_m")
            if height_m is not None and height_m <= 0:
                yield f"{place}.params.height_m {height_m:g}: is below the ground, and never reached"
    if not has_limit:
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


def _find_doubtful_levels(config: EnvConfig, functions: list[TermFunction]) -> Iterator[str]:
    """Find levels that never change, change from one end to the other, that nothing reads, or with a wrong scale."""
    read = {term.params.get("curriculum") for term in functions}
    may_read = any(not _is_built_in(term.func) for term in functions)
    for name, term in config.curriculum.items():
        place, (low, high), step = f"--env.curriculum.{name}", term.bounds, term.params.get("step")
        tracked = config.rewards.get(term.params.get("reward", ""))
        if term.func is velocity.command_level and tracked is not None:
            full = term.params["full"]
            if not math.isclose(full, tracked.weight, rel_tol=1e-3):
                yield (
                    f"{place}.params.full {full:g}: the weight of rewards.{term.params['reward']}, its reward per "
                    f"second at best, is {tracked.weight:g}"
                )
        if low == high:
            yield f"{place}.bounds {spaced(term.bounds)}: the level is always the same"
        elif isinstance(step, int | float) and step > high - low and term.func in _STEPPED:
            yield f"{place}.params.step {step:g}: is more than all levels, {low:g} to {high:g}"
        if name not in read and not may_read and term.func is not tracking.adaptive_sampling:  # which only reports
            yield f"{place}: no term reads this level; name it in a parameter curriculum"


def _find_differing_gaits(terms: list[TermFunction], step_dt: float) -> Iterator[str]:
    """Find schedules of one command that differ or that the policy does not see, and strides that are too short."""
    first: dict[tuple[Any, ...], tuple[str, Any]] = {}

    def find_other(term: TermFunction, key: str, feet: int | None = None) -> Iterator[str]:
        """Yield a line if a parameter differs from that of the first term of the same command."""
        value = term.params.get(key)
        place, other = first.setdefault((term.params.get("command"), key, feet), (term.name, value))
        if other != value:
            yield f"--env.{term.name}.params.{key} {spaced(value)}: is {spaced(other)} in {place}; give the same"

    clocks: dict[Any, set[float]] = {}
    for term in terms:
        if (frequency_hz := term.params.get("frequency_hz")) is None:
            continue
        if frequency_hz * step_dt > 0.5:
            yield (
                f"--env.{term.name}.params.frequency_hz {frequency_hz:g}: a stride is shorter than two env steps, "
                f"which last {step_dt:g} s each"
            )
        yield from find_other(term, "velocity_sensor")
        if term.func is gait.clock:
            clocks.setdefault(term.params["command"], set()).add(frequency_hz)
    for term in terms:
        if not term.name.startswith("rewards."):
            continue
        for key in ("frequency_hz", "offsets", "duty"):
            if key in term.params:
                yield from find_other(term, key, len(term.params[key]) if key == "offsets" else None)
        seen, frequency_hz = clocks.get(term.params.get("command")), term.params.get("frequency_hz")
        if seen and frequency_hz is not None and frequency_hz not in seen:
            yield (
                f"--env.{term.name}.params.frequency_hz {frequency_hz:g}: the clock that the policy observes has "
                f"{' and '.join(f'{value:g}' for value in sorted(seen))}; give the same"
            )


def _find_mixed_feet(terms: list[TermFunction], engine: NativeEngine) -> Iterator[str]:
    """Yield a line for each term that takes the readings of one foot for those of another."""
    model = engine.model
    offsets: dict[tuple[str, int], tuple[str, float]] = {}
    for term in terms:
        if not term.name.startswith("rewards."):
            continue
        feet = {name: bodies for name in _FOOT_SENSORS if (bodies := _find_bodies(term, name, engine)) is not None}
        (first, bodies), *others = feet.items() or [("", [])]
        for name, theirs in others:
            pairs = enumerate(zip(bodies, theirs, strict=False))
            mixed = [(index, *pair) for index, pair in pairs if not are_in_line(model, *pair)]
            if mixed:
                index, body, other = mixed[0]
                yield (
                    f"--env.{term.name}.params.{name} {term.params[name][index]}: is on {model.body(other).name}, and "
                    f"{term.params[first][index]} of {first} on {model.body(body).name}; give both in the same order"
                )
                break
        for bodies in feet.values():
            for body, offset in zip(bodies, term.params.get("offsets", ()), strict=False):
                place, other = offsets.setdefault((term.params.get("command", ""), body), (term.name, offset))
                if other != offset:
                    yield (
                        f"--env.{term.name}.params.offsets: {model.body(body).name} has {offset:g}, and {other:g} in "
                        f"{place}; give sensors and offsets in the same order"
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


def _find_doubtful_commands(config: EnvConfig, functions: list[TermFunction]) -> Iterator[str]:
    """Find commands that are not reached, or rewarded and not observed, and failures that nothing counts."""
    counted = [term.params.get("command") for term in config.curriculum.values()]
    for name, term in config.commands.items():
        place, longest = f"--env.commands.{name}", min(term.resampling_s[1], config.episode_length_s)
        is_adaptive = term.func is tracking.motion_command and term.params.get("sampling", "adaptive") == "adaptive"
        if is_adaptive and name not in counted:
            yield (
                f"{place}.params.sampling adaptive: no curriculum counts failures, so that frames are drawn uniformly; "
                f'add curriculum(tracking.adaptive_sampling, command="{name}")'
            )
        if term.refine is velocity.approach and term.func is velocity.velocity_command:
            for key, change, unit in (("speed", "acceleration", "m/s"), ("turn", "turn_acceleration", "rad/s")):
                reached = term.refine_params[change] * longest
                if reached < term.params[key]:
                    yield (
                        f"{place}.refine-params.{change} {term.refine_params[change]:g}: in {longest:g} s, until the "
                        f"next draw, the command reaches {reached:g} {unit}; params.{key} is {term.params[key]:g}"
                    )
        for key, error in term.errors.items():
            if error.settling_s >= longest:
                yield (
                    f"{place}.errors.{key}.settling-s {error.settling_s:g}: the next draw comes after {longest:g} s, "
                    "so that nothing counts"
                )
    observed = [term for term in functions if term.name.startswith("observations.")]
    if config.cameras or any(not _is_built_in(term.func) for term in observed):
        return  # they may show it
    seen = {term.params.get("command") for term in observed}
    for term in functions:
        command = term.params.get("command")
        if term.name.startswith("rewards.") and command and command not in seen:
            yield f"--env.{term.name}: rewards what command {command} asks for, and no observation shows that command"
            return


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
    for name, term in config.events.items():
        if term.mode == "interval" and term.interval_s[1] < env.step_dt:
            yield f"--env.events.{name}.interval-s {spaced(term.interval_s)}: happens in every env step"


def _find_doubtful_readings(config: EnvConfig, env: Env) -> Iterator[str]:
    """Find huge and constant readings, noise beyond all actions, and memories that no episode is long enough for."""
    steps = env.max_episode_steps
    terms: list[tuple[str, Any]] = [(f"actions.{name}", term) for name, term in config.actions.items()]
    for group, observed in config.observations.items():
        terms += [(f"observations.{group}.{name}", term) for name, term in observed.items()]
    for name, term in terms:
        for what, value in (("delay", term.delay[1]), ("history", getattr(term, "history", 1))):
            if value >= max(steps, 2):
                yield f"--env.{name}.{what} {value}: an episode has {count(steps, 'env step')}"
        if term.clip is not None and term.clip[0] == term.clip[1] and name.startswith("observations."):
            yield f"--env.{name}.clip {spaced(term.clip)}: every reading is the same"
    for name, term in config.actions.items():
        scales = term.scale.values() if isinstance(term.scale, dict) else [term.scale]
        span = min(map(abs, scales)) * (term.clip[1] - term.clip[0])
        if config.observation_noise and term.noise > span:
            yield f"--env.actions.{name}.noise {term.noise:g}: is more than all that actions change, {span:g}"
    for group, observed in env.observe().items():
        if observed.ndim > 2:
            continue
        widths = env.observation_widths(group)
        for name, part in zip(widths, observed.split(list(widths.values()), dim=1), strict=True):
            if part.isfinite().all() and bool((part.abs() > _HUGE).any()):
                yield (
                    f"--env.observations.{group}.{name}: reads {part.abs().max():.3g}, where networks need numbers "
                    "near 1; give a scale"
                )


def _find_doubtful_factors(config: EnvConfig, layout: Layout) -> Iterator[str]:
    """Find factors of what is zero, and factors that are values or percentages."""
    for name, term in config.events.items():
        factor = term.params.get("factor")
        if not _is_built_in(term.func) or not isinstance(factor, tuple | list):
            continue
        if factor[0] >= _LARGE_FACTOR:
            yield f"--env.events.{name}.params.factor {spaced(factor)}: multiplies what the model has; near 1 is usual"
        if factor[1] == 0 and term.func is randomization.actuator_gains:
            yield f"--env.events.{name}.params.factor {spaced(factor)}: no actuator has a force"
        if term.func in _SCALED:
            field, kind, key = _SCALED[term.func]
            rows = layout.rows(kind, term.params[key])
            zero = ~layout.nominal[field].reshape(len(layout.nominal[field]), -1).any(dim=1)
            if term.func is randomization.effort_limits:  # the others are often 0 in some of many parts
                names = [actuator for actuator, row in layout.actuators.items() if row in rows and zero[row]]
                if names:
                    have = "have" if len(names) > 1 else "has"
                    yield (
                        f"--env.events.{name}: effort_limits() changes nothing of {', '.join(names)}, which {have} no "
                        "force range"
                    )
            elif zero[rows].all():
                yield (
                    f"--env.events.{name}: {term.func.__name__}() multiplies the {field.split('_')[1]} of "
                    f"{spaced(term.params[key])}, which is 0 in the model"
                )


def find_missing_ground(config: EnvConfig) -> Iterator[str]:
    """Yield a line for each term for patches of a ground that has none, and for levels that it does not have."""
    terrain = config.terrain
    for term in list_functions(config):
        if terrain.kind != "generated" and term.func in _ON_PATCHES:
            yield (
                f"--env.{term.name}: {term.func.__name__}() needs a generated ground, and --env.terrain.kind is "
                f"{terrain.kind}"
            )
            return
    for name, term in config.curriculum.items():
        if term.func is velocity.terrain_level:
            low, high = term.bounds
            if low < 0 or high >= terrain.num_levels:
                yield (
                    f"--env.curriculum.{name}.bounds {spaced(term.bounds)}: the ground has levels 0 to "
                    f"{terrain.num_levels - 1} (--env.terrain.num-levels {terrain.num_levels})"
                )
            if term.params["far_m"] > terrain.patch_m:
                yield (
                    f"--env.curriculum.{name}.params.far_m {term.params['far_m']:g}: a patch is {terrain.patch_m:g} m "
                    "wide"
                )


def _is_built_in(func: Callable[..., Any]) -> bool:
    return func.__module__.startswith("mjtrain.mdp.")
