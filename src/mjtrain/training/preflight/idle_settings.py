"""Settings of terms that have no effect, or not the one that their names promise."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

from mjtrain.config import EnvConfig
from mjtrain.env.env import Env
from mjtrain.env.term_check import TermFunction, list_functions
from mjtrain.mdp import events, randomization, terminations, tracking, velocity
from mjtrain.runtime.errors import count
from mjtrain.sim.engines.native import NativeEngine
from mjtrain.sim.robots.layout import Layout
from mjtrain.sim.robots.plausibility import is_hinge

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


def find_idle_settings(config: EnvConfig, env: Env, engine: NativeEngine) -> Iterator[str]:
    """Yield a line for each setting that changes nothing, or always the same."""
    yield from _find_long_memories(config, env)
    yield from _find_equal_bounds(config, env.step_dt)
    yield from _find_idle_levels(config)
    yield from _find_idle_factors(config, env.engine.layout)
    yield from _find_limits_in_degrees(config, engine)
    yield from _find_ends_below_ground(config)
    yield from _find_unseen_commands(config)
    if config.rewards and not any(term.weight for term in config.rewards.values()):
        yield "--env.rewards: the weight of every term is 0, so that nothing is rewarded"


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
                    f"--env.curriculum.{name}.bounds {_show(term.bounds)}: the ground has levels 0 to "
                    f"{terrain.num_levels - 1} (--env.terrain.num-levels {terrain.num_levels})"
                )
            if term.params["far_m"] > terrain.patch_m:
                yield (
                    f"--env.curriculum.{name}.params.far_m {term.params['far_m']:g}: a patch is {terrain.patch_m:g} m "
                    "wide"
                )


def _find_long_memories(config: EnvConfig, env: Env) -> Iterator[str]:
    """Find delays and histories that no episode is long enough for."""
    steps = env.max_episode_steps
    terms: list[tuple[str, Any]] = [(f"actions.{name}", term) for name, term in config.actions.items()]
    for group, observed in config.observations.items():
        terms += [(f"observations.{group}.{name}", term) for name, term in observed.items()]
    for name, term in terms:
        for what, value in (("delay", term.delay[1]), ("history", getattr(term, "history", 1))):
            if value >= max(steps, 2):
                yield f"--env.{name}.{what} {value}: an episode has {count(steps, 'env step')}"
    for name, term in config.commands.items():
        longest = min(term.resampling_s[1], config.episode_length_s)
        for key, error in term.errors.items():
            if error.settling_s >= longest:
                yield (
                    f"--env.commands.{name}.errors.{key}.settling-s {error.settling_s:g}: the next draw comes after "
                    f"{longest:g} s, so that nothing counts"
                )


def _find_equal_bounds(config: EnvConfig, step_dt: float) -> Iterator[str]:
    """Find clips that leave one value, noise beyond all actions, and what happens in every env step."""
    for group, observed in config.observations.items():
        for name, term in observed.items():
            if term.clip is not None and term.clip[0] == term.clip[1]:
                yield f"--env.observations.{group}.{name}.clip {_show(term.clip)}: every reading is the same"
    for name, term in config.actions.items():
        scales = term.scale.values() if isinstance(term.scale, dict) else [term.scale]
        span = min(map(abs, scales)) * (term.clip[1] - term.clip[0])
        if config.observation_noise and term.noise > span:
            yield f"--env.actions.{name}.noise {term.noise:g}: is more than all that actions change, {span:g}"
    for name, term in config.events.items():
        if term.mode == "interval" and term.interval_s[1] < step_dt:
            yield f"--env.events.{name}.interval-s {_show(term.interval_s)}: happens in every env step"


def _find_idle_levels(config: EnvConfig) -> Iterator[str]:
    """Find levels that never change, change from one end to the other, or that nothing can read."""
    functions = list(list_functions(config))
    read = {term.params.get("curriculum") for term in functions}
    may_read = any(not _is_built_in(term) for term in functions)
    for name, term in config.curriculum.items():
        low, high = term.bounds
        step = term.params.get("step")
        if low == high:
            yield f"--env.curriculum.{name}.bounds {_show(term.bounds)}: the level is always the same"
        elif isinstance(step, int | float) and step > high - low and term.func in _STEPPED:
            yield f"--env.curriculum.{name}.params.step {step:g}: is more than all levels, {low:g} to {high:g}"
        if name not in read and not may_read and term.func is not tracking.adaptive_sampling:  # which only reports
            yield f"--env.curriculum.{name}: no term reads this level; name it in a parameter curriculum"


def _find_idle_factors(config: EnvConfig, layout: Layout) -> Iterator[str]:
    """Find factors of what is zero, and factors that are values or percentages."""
    for name, term in config.events.items():
        factor = term.params.get("factor")
        if not term.func.__module__.startswith("mjtrain.mdp.") or not isinstance(factor, tuple | list):
            continue
        if factor[0] >= _LARGE_FACTOR:
            yield f"--env.events.{name}.params.factor {_show(factor)}: multiplies what the model has; near 1 is usual"
        if factor[1] == 0 and term.func is randomization.actuator_gains:
            yield f"--env.events.{name}.params.factor {_show(factor)}: no actuator has a force"
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
                    f"{_show(term.params[key])}, which is 0 in the model"
                )


def _find_limits_in_degrees(config: EnvConfig, engine: NativeEngine) -> Iterator[str]:
    """Find limits of a joint that its range never lets it reach, and angles of more than a turn."""
    for name, term in config.terminations.items():
        limit, joint = term.params.get("limit"), term.params.get("joint", "")
        if term.func is not terminations.joint_out_of_range or limit is None:
            continue
        flag = f"--env.terminations.{name}.params.limit {limit:g}"
        low, high = engine.layout.joint_range.get(joint, (-math.inf, math.inf))
        if limit >= max(-low, high):
            yield f"{flag}: joint {joint} has the range {low:.4g} to {high:.4g}, and never reaches it"
        elif limit > 2 * math.pi and is_hinge(engine.model, joint):
            yield f"{flag}: is more than a turn of joint {joint}, in rad"


def _find_ends_below_ground(config: EnvConfig) -> Iterator[str]:
    """Find heights below a ground that nothing can be below."""
    for name, term in config.terminations.items():
        height_m = term.params.get("height_m")
        below = term.func is terminations.root_height_below_minimum and height_m is not None and height_m <= 0
        if below and config.terrain.kind != "robot":
            yield f"--env.terminations.{name}.params.height_m {height_m:g}: is below the ground, and never reached"


def _find_unseen_commands(config: EnvConfig) -> Iterator[str]:
    """Find commands that are rewarded and that no observation shows, as far as that can be known."""
    functions = list(list_functions(config))
    observed = [term for term in functions if term.name.startswith("observations.")]
    if config.cameras or any(not _is_built_in(term) for term in observed):
        return
    seen = {term.params.get("command") for term in observed}
    for term in functions:
        command = term.params.get("command")
        if term.name.startswith("rewards.") and command and command not in seen:
            yield f"--env.{term.name}: rewards what command {command} asks for, and no observation shows that command"
            return


def _is_built_in(term: TermFunction) -> bool:
    return term.func.__module__.startswith("mjtrain.mdp.")


def _show(values: Any) -> str:
    return " ".join(f"{value:g}" if isinstance(value, int | float) else str(value) for value in values)
