"""Two worlds: one env step in which every term is checked, and a trial with random actions; what a world needs."""

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from mjtrain.config import EnvConfig
from mjtrain.config.limits import Reads
from mjtrain.env.env import Env
from mjtrain.env.events import Worlds
from mjtrain.env.mirror import find_mirror_problems
from mjtrain.env.term_check import PLURALS, check_terms, list_functions, matched_names, read_annotation
from mjtrain.env.term_result import describe_exception, find_result_problem
from mjtrain.env.undisturbed import Memory, undisturbed
from mjtrain.runtime.errors import RequestError, refuse
from mjtrain.sim.engines import make_engine
from mjtrain.sim.engines.native import NativeEngine
from mjtrain.sim.robots.height_field import check_height_field
from mjtrain.sim.robots.layout import SensorKind
from mjtrain.sim.robots.model import FatalError, list_grounds
from mjtrain.sim.robots.plausibility import NUM_STARTS, Plausibility, Starts
from mjtrain.training.preflight.term_guards import TermGuards, without_consequences
from mjtrain.training.preflight.term_use import find_doubtful_terms, find_missing_ground, without_idle_rewards

NUM_ENVS = 2
NUM_LEVELS = 2
"""Levels of a generated ground: enough to show that levels differ; the ground of a training takes longer to make."""

_MOST = 0.7
"""Fraction of the episodes that end in their first env step which is reported."""

NUM_STEPS = 60
"""Env steps: enough for a robot that stands to fall."""

NUM_STEPS_WITH_CAMERAS = 4
"""The same where each of them draws images."""

_HELD_STEPS = 8
"""Env steps for which one of the worlds has the same actions, which move a robot further than new ones do."""

_SHORT_S = 0.2
"""Longest episode, in s, of those that are too short for a robot to do anything."""

_HUGE_REWARD = 1e6
"""Reward times weight that no value function can learn."""

_ANY = ("user", "plugin")
"""Sensors that may measure anything."""


@dataclass(frozen=True, kw_only=True)
class TaskSize:
    """What one environment of a task observes, the size of its action, and how many bytes it takes."""

    shapes: dict[str, tuple[int, ...]]
    """Observations by group: (size,), or (channels, height, width) of images."""

    group_bytes: dict[str, int]
    """Observations of one env step, by group."""

    image_bytes: int
    """Frames of its cameras, and what the ray caster writes before it."""

    history_bytes: int
    """Earlier observations, kept for `history` and `delay`."""

    num_actions: int
    episode_steps: int = 0
    """Longest episode, in env steps."""

    warnings: tuple[str, ...] = ()
    """What is possible and yet probably not meant, a line each."""


def check_task(config: EnvConfig, mirrored: tuple[str, ...] = ()) -> TaskSize:
    """Step two worlds of a task once, on the CPU and the native engine, and check what every term returns.

    The random numbers of this process are as before, and so are the global variables of the modules that define the
    terms: a term that counts its calls there, or keeps tensors of another run, begins the training as if it were new.
    """
    check_terms(config)
    guards, size = TermGuards(), None
    problems = guards.problems
    wrong: list[str] = []
    with undisturbed(config):
        try:
            size = _step_once(_shrink(config), guards, mirrored, wrong)
        except Exception as error:  # what follows from a term that is wrong; the term says more
            if not problems:
                if isinstance(error, TypeError) and str(error).startswith("--env."):  # of a result that varies
                    raise RequestError(str(error)) from error
                if isinstance(error, FatalError):  # its memory is too small, say
                    words = " ".join(str(error).split())
                    raise RequestError(f"--env.robot {config.robot.label}: MuJoCo stops: {words}") from error
                no_memory = isinstance(error, RuntimeError) and "allocate" in str(error)  # of torch or Warp
                if no_memory or isinstance(error, MemoryError):
                    raise RequestError(
                        f"--env: {NUM_ENVS} environments do not fit into memory ({error}); give smaller images, or a "
                        "shorter history and delay"
                    ) from error
                raise
    if problems:
        told = without_consequences(problems)
        raise RequestError.of([*wrong, *(f"--env.{name}: {problem}" for name, problem in told.items())])
    refuse(wrong)
    assert size is not None
    warnings = [f"--env.{name}: {problem}" for name, problem in guards.kept.items()]
    return replace(size, warnings=(*warnings, *size.warnings, *find_missing_ground(config)))


def _choose_between(low: float, high: float) -> float:
    """Return the middle of bounds; if one is infinite, the finite value that is closest to zero."""
    return 0.5 * (low + high) if math.isfinite(low + high) else min(max(0.0, low), high)


def _step_once(config: EnvConfig, guards: TermGuards, mirrored: tuple[str, ...], wrong: list[str]) -> TaskSize | None:
    """Step once, and then, if all terms fit, look at what they are used for and how episodes begin."""
    guarded, problems = guards.guard_all(config), guards.problems
    engine = make_engine("native", config, NUM_ENVS, "cpu", num_threads=1)
    assert isinstance(engine, NativeEngine)
    env = None
    try:
        env = Env(guarded, engine, seed=0)
        starts = Starts(default=engine.layout.default_qpos.double().numpy(), after=guards.after)
        env.step(torch.zeros(NUM_ENVS, env.num_actions))
        for name, term in guarded.commands.items():
            for error in term.errors:
                env.command_error(name, error)
            if term.steer is not None:
                env.steer(name, [_choose_between(low, high) for low, high in term.controls.values()])
            if term.is_pose and (problem := _find_pose_problem(env.command(name).shape[1], term.object)):
                problems.setdefault(f"commands.{name}.is_pose", problem)
        for name in guarded.controllers:
            env.controller(name)
        for group in config.observations:
            _check_observed(env, group, problems)
        _call_late(guarded, env)
        for name, problem in _find_sensor_problems(config, engine):
            problems.pop(name, None)  # what the term raised follows from the sensor
            wrong.append(problem)
        if problems:
            return None
        if mirrored:
            wrong += find_mirror_problems(env, mirrored)
        if env.step_dt > config.episode_length_s * 1.001:
            wrong.append(
                f"--env.episode-length-s {config.episode_length_s:g}: is shorter than an env step, which lasts "
                f"{env.step_dt:g} s"
            )
        if wrong:
            return None
        size = measure_task(env)
        doubts = [*_find_doubts(config, env, engine, starts, wrong)]
        if not wrong:
            guards.quick = True
            doubts += _explore(config, env, guards)
            _call_when_due(guarded, env)
        return replace(size, warnings=(*size.warnings, *doubts))
    finally:
        (env or engine).close()


def _find_sensor_problems(config: EnvConfig, engine: NativeEngine) -> Iterator[tuple[str, str]]:
    """Yield terms and their sensors that measure something else than the functions need, see `limits.Reads`."""
    for term in list_functions(without_idle_rewards(config)):
        try:
            parameters = inspect.signature(term.func).parameters
        except (TypeError, ValueError):  # a built-in function that does not say
            continue
        for name, value in term.params.items():
            if value is None or name not in parameters:
                continue
            limits = getattr(read_annotation(term.func, parameters[name]), "__metadata__", ())
            needs = next((limit for limit in limits if isinstance(limit, Reads)), None)
            if needs is None:
                continue
            is_pattern = name.rsplit("_", 1)[-1] in PLURALS
            for sensor in matched_names("sensor", value, engine.layout) if is_pattern else [value]:
                problem = _describe_sensor(engine.layout.sensor_kinds[sensor], needs)
                if problem is not None:
                    yield term.name, f"--env.{term.name}.params.{name} {sensor}: {problem} for {term.func.__name__}()"
                    break


def _describe_sensor(sensor: SensorKind, needs: Reads) -> str | None:
    kind, is_relative = sensor.type, sensor.is_relative
    if kind in _ANY or kind in (needs.relative_types if is_relative else needs.types):
        return None
    wanted = [*needs.types, *(f"{name} with a reference" for name in needs.relative_types if name not in needs.types)]
    frame = ""
    if kind in (*needs.types, *needs.relative_types):
        frame = " in the frame of its reference" if is_relative else " in the world's frame"
    return f"is a {kind}{frame}; give {needs.what} ({' or '.join(wanted)})"


def _explore(config: EnvConfig, env: Env, guards: TermGuards) -> Iterator[str]:
    """Step with random actions until a term shows something that is wrong; a robot at rest may not show it."""
    generator = torch.Generator().manual_seed(0)
    held, memory = torch.zeros(env.num_actions), Memory(config)
    begun, lengths, causes = torch.zeros(env.num_envs, dtype=torch.long), [], set()
    num_steps = NUM_STEPS_WITH_CAMERAS if config.cameras else NUM_STEPS
    for step in range(num_steps):
        action = 2 * torch.rand(env.num_envs, env.num_actions, generator=generator) - 1
        if step % _HELD_STEPS == 0:
            held = action[0].sign()
        action[0] = held
        try:
            env.step(action)
        except TypeError as error:  # another number of columns than before
            raise RequestError(str(error)) if str(error).startswith("--env.") else error from None
        done = env.causes.any(dim=1)
        lengths += (step + 1 - begun)[done].tolist()
        causes |= set(env.causes.any(dim=0).nonzero().flatten().tolist())
        begun[done] = step + 1
        if guards.problems:
            return
        if env.describe_fastest():
            yield f"--env: a world broke in env step {step + 1} of random actions: {env.explain_broken_worlds()}"
            return
    for name in memory.find_changed():
        yield (
            f"--env: the functions of the task change {name} from env step to env step, which checkpoints do not save; "
            "the refine of a command keeps numbers that are saved"
        )
    longest_s = max([*lengths, *(num_steps - begun).tolist()]) * env.step_dt
    if len(lengths) >= 2 * env.num_envs and longest_s <= _SHORT_S and config.episode_length_s > 4 * _SHORT_S:
        names = [name for index, name in enumerate(config.terminations) if index in causes]
        yield (
            f"--env.terminations.{', '.join(names)}: ended all {len(lengths)} episodes of a trial with random actions "
            f"within {longest_s:.2g} s"
        )
    yield from _find_extremes(config, guards.returned)


def _find_extremes(config: EnvConfig, returned: dict[str, list[torch.Tensor]]) -> Iterator[str]:
    """Yield a line for each observation that never changed, and for each reward that was huge."""
    ranges = {name: torch.cat(values).aminmax(dim=0) for name, values in returned.items()}
    for group, terms in config.observations.items():
        for name, term in terms.items():
            place = f"observations.{group}.{name}"
            # Commands and levels may be the same on purpose, and a foot may never touch the ground.
            if place not in ranges or {"command", "curriculum"} & set(term.params) or not ranges[place].min.any():
                continue
            bounds = term.clip or (-math.inf, math.inf)
            low, high = ((bound * term.scale).clamp(*bounds) for bound in ranges[place])
            if low.ndim == 1 and bounds[0] < bounds[1] and bool((low == high).all()):
                shown = " ".join(f"{number:g}" for number in low.tolist()[:3])
                yield (
                    f"--env.{place}: was {shown}{' …' if len(low) > 3 else ''} in both worlds and all env steps of "
                    "a trial with random actions, so that a policy learns nothing from it"
                )
    for name, term in config.rewards.items():
        place = f"rewards.{name}"
        if place in ranges:
            most = abs(term.weight) * max(abs(float(bound)) for bound in ranges[place])
            if most > _HUGE_REWARD:
                yield f"--env.{place}: was {most:.3g} per second in a trial with random actions; bound it"


def _call_when_due(guarded: EnvConfig, env: Env) -> None:
    """Call interval events with all worlds due: the first time that is drawn may be later than the trial."""
    everywhere = torch.ones(env.num_envs, dtype=torch.bool)
    for term in guarded.events.values():
        if term.mode == "interval":
            worlds = Worlds(mask=everywhere, qpos=env.state.qpos.clone(), qvel=env.state.qvel.clone())
            term.func(env, worlds, **term.params)


def _call_late(guarded: EnvConfig, env: Env) -> None:
    """Call what is computed in each env step as in the last one of an episode, which a table may be too short for."""
    step = env.episode_step.clone()
    env.episode_step.fill_(env.max_episode_steps - 1)
    env.read_only.mark()
    rewards = without_idle_rewards(guarded).rewards
    try:
        for terms in (*guarded.observations.values(), rewards, guarded.terminations):
            for term in terms.values():
                term.func(env, **term.params)
    finally:
        env.episode_step.copy_(step)
        env.read_only.mark()


def _find_doubts(config: EnvConfig, env: Env, engine: NativeEngine, starts: Starts, wrong: list[str]) -> list[str]:
    """Return what is probably not meant; wrong gets lines if no episode can last longer than an env step."""
    everywhere = torch.ones(NUM_ENVS, dtype=torch.bool)
    doubts = list(find_doubtful_terms(config, env, engine))
    ends, early = _find_early_ends(config, env)
    model = Plausibility(config, engine.model, env.action_table, starts, lambda: env.reset(everywhere))
    wrong += model.find_wrong_positions()
    about_starts = list(model.find_doubtful_starts())
    if ends:
        wrong += [*about_starts, *ends]
    return [*about_starts, *model.find_doubtful_motors(), *doubts, *early]


def _find_early_ends(config: EnvConfig, env: Env) -> tuple[list[str], list[str]]:
    """Find terminations that are true in the first env step of every episode, and those that are in most of them."""
    causes, num_begun = env.causes.sum(dim=0), NUM_ENVS
    always: list[str] = []
    often: list[str] = []
    for _ in range(NUM_STARTS - 1):
        begins = env.causes.any(dim=1)
        if env.max_episode_steps == 1 or not begins.any():
            return always, often
        env.step(torch.zeros(NUM_ENVS, env.num_actions))
        causes = causes + (env.causes & begins[:, None]).sum(dim=0)
        num_begun += int(begins.sum())
    for (name, term), count in zip(config.terminations.items(), causes.tolist(), strict=True):
        if count < _MOST * num_begun:
            continue
        function = getattr(term.func, "__name__", "the function")
        line = (
            f"--env.terminations.{name}: {function}() is true in the first env step of "
            f"{'every episode' if count == num_begun else 'most episodes'} ({count} of {num_begun})"
        )
        (always if count == num_begun else often).append(line)
    return always, often


def _find_pose_problem(num_columns: int, object: str) -> str | None:
    if num_columns not in (3, 4) and num_columns < 7:
        return f"the size of the command is {num_columns}; that of a position is 3, of a quaternion 4, of both 7"
    if num_columns == 4 and not object:
        return "the command is a quaternion; give object, the free joint where viewers mark it"
    return None


def _check_observed(env: Env, group: str, problems: dict[str, str]) -> None:
    """Find observations that settings make infinite or NaN, and call what compares estimates with the observations."""
    observed = env.observe()[group]
    parts = observed.split(list(env.observation_widths(group).values()), dim=1)
    for (name, term), part in zip(env.config.observations[group].items(), parts, strict=True):
        place, func = f"observations.{group}.{name}", term.estimate_error
        if not part.isfinite().all():  # the numbers of its function are finite
            problems.setdefault(place, "is not finite after noise, scale and clip; one of them is too large")
        if func is None or observed.ndim > 2:  # only flat groups are estimated
            continue
        try:
            problem = find_result_problem("error", func(part, part), env.num_envs, env.device)
            problem = problem and f"{getattr(func, '__name__', 'the function')}() {problem}"
        except Exception as error:
            problem = describe_exception(func, error)
        if problem is not None:
            problems.setdefault(f"{place}.estimate_error", problem)


def _shrink(config: EnvConfig) -> EnvConfig:
    """Make a generated ground smaller. All other settings count, and so do those of the ground that may be wrong."""
    terrain = config.terrain
    if terrain.kind != "generated" or terrain.num_levels <= NUM_LEVELS:
        return config
    check_height_field(terrain)
    return replace(config, terrain=replace(terrain, num_levels=NUM_LEVELS))


def measure_task(env: Env) -> TaskSize:
    """Measure the tensors of environments; what all worlds share does not count."""
    buffers = env.state_dict()["buffers"]

    def per_env(num_bytes: int) -> int:
        return num_bytes // env.num_envs

    def of_part(part: str) -> int:
        return sum(tensor.nbytes for name, tensor in buffers.items() if name.startswith(f"{part}."))

    rendered = env.cameras.renderer.num_bytes if env.config.cameras else 0
    return TaskSize(
        shapes={group: tuple(observed.shape[1:]) for group, observed in env.observe().items()},
        group_bytes={group: per_env(tensor.nbytes) for group, tensor in env.observe().items()},
        image_bytes=per_env(rendered + of_part("cameras")),
        history_bytes=per_env(of_part("observations")),
        num_actions=env.num_actions,
        episode_steps=env.max_episode_steps,
        warnings=_find_own_grounds(env),
    )


def _find_own_grounds(env: Env) -> tuple[str, ...]:
    """Say which grounds of the robot's file are there beside the one that is added."""
    kind = env.config.terrain.kind
    grounds = () if kind == "robot" else list_grounds(env.engine.model)[:-1]
    if not grounds:
        return ()
    return (
        f"--env.terrain.kind {kind}: adds a ground beside that of the robot's file ({', '.join(grounds)}); give "
        "--env.terrain.kind robot, or a file without a ground",
    )
