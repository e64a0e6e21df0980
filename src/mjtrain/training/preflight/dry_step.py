"""One env step on two worlds, in which the result of every term is checked."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from mjtrain.config import EnvConfig
from mjtrain.env.env import Env
from mjtrain.env.events import Worlds
from mjtrain.env.mirror import find_mirror_problems
from mjtrain.env.term_check import check_terms
from mjtrain.env.term_result import Kind, describe_exception, find_result_problem
from mjtrain.env.undisturbed import undisturbed
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.engines import make_engine
from mjtrain.training.preflight.task_size import TaskSize, measure_task

NUM_ENVS = 2
NUM_LEVELS = 2
"""Levels of a generated ground: as many as show that levels differ; the ground of a training takes longer to make."""

_UNUSABLE = "cannot use its parameters together"
_UPSTREAM = ("commands.", "events.", "curriculum.")


def check_task(config: EnvConfig, mirrored: tuple[str, ...] = ()) -> TaskSize:
    """Step two worlds of a task once, on the CPU and the native engine, and check what every term returns.

    The random numbers of this process are as before, and so are the global variables of the modules that define the
    terms: a term that counts its calls there, or keeps tensors of another run, begins the training as if it were new.

    Args:
        config: The MDP.
        mirrored: Observation groups that the training mirrors, together with the actions.

    Returns:
        What one environment observes, and how much memory it takes.

    Raises:
        RequestError: Something of the config, the robot or the terms does not fit. There is a note for each further
            problem.
    """
    check_terms(config)
    problems: dict[str, str] = {}
    uneven: list[str] = []
    size = None
    with undisturbed(config):
        try:
            size = _step_once(_guard_all(_shrink(config), problems), problems, mirrored, uneven)
        except Exception as error:  # what follows from a term that is wrong; the term says more
            if not problems:
                if _is_out_of_memory(error):
                    raise RequestError(
                        f"--env: {NUM_ENVS} environments do not fit into memory ({error}); give smaller images, or a "
                        "shorter history and delay"
                    ) from error
                raise
    if problems:
        raise RequestError.of([f"--env.{name}: {problem}" for name, problem in _without_consequences(problems).items()])
    if uneven:
        raise RequestError.of(uneven)
    assert size is not None
    return size


def _is_out_of_memory(error: Exception) -> bool:
    """Whether Python, torch or Warp found no memory on the CPU."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate" in str(error))


def _step_once(config: EnvConfig, problems: dict[str, str], mirrored: tuple[str, ...], uneven: list[str]) -> TaskSize:
    engine = make_engine("native", config, NUM_ENVS, "cpu", num_threads=1)
    env = None
    try:
        env = Env(config, engine, seed=0)
        env.step(torch.zeros(NUM_ENVS, env.num_actions))
        for name, term in config.commands.items():
            for error in term.errors:
                env.command_error(name, error)
            if term.steer is not None:
                env.steer(name, [0.5 * (low + high) for low, high in term.controls.values()])
            if term.is_pose and (problem := _find_pose_problem(env.command(name).shape[1], term.object)):
                problems.setdefault(f"commands.{name}.is_pose", problem)
        for group in config.observations:
            _compare_estimates(env, group, problems)
        if mirrored:
            uneven += find_mirror_problems(env, mirrored)
        return measure_task(env)
    finally:
        (env or engine).close()


def _find_pose_problem(num_columns: int, object: str) -> str | None:
    if num_columns not in (3, 4) and num_columns < 7:
        return f"the size of the command is {num_columns}; that of a position is 3, of a quaternion 4, of both 7"
    if num_columns == 4 and not object:
        return "the command is a quaternion; give object, the free joint where viewers mark it"
    return None


def _compare_estimates(env: Env, group: str, problems: dict[str, str]) -> None:
    """Call what compares estimates of an observation group with the group itself; only flat groups are estimated."""
    observed = env.observe()[group]
    if observed.ndim > 2:
        return
    columns = observed.split(list(env.observation_widths(group).values()), dim=1)
    for (name, term), part in zip(env.config.observations[group].items(), columns, strict=True):
        if term.estimate_error is None:
            continue
        name, func = f"observations.{group}.{name}.estimate_error", term.estimate_error
        try:
            problem = find_result_problem("error", func(part, part), env.num_envs, env.device)
            problem = problem and f"{getattr(func, '__name__', 'the function')}() {problem}"
        except Exception as error:
            problem = describe_exception(func, error)
        if problem is not None:
            problems.setdefault(name, problem)


def _shrink(config: EnvConfig) -> EnvConfig:
    """Make a generated ground smaller. All other settings count, and so do those of the ground that may be wrong."""
    terrain = config.terrain
    if terrain.kind != "generated" or terrain.num_levels <= NUM_LEVELS:
        return config
    return replace(config, terrain=replace(terrain, num_levels=NUM_LEVELS))


def _guard_all(config: EnvConfig, problems: dict[str, str]) -> EnvConfig:
    """Replace every function by one that notes what is wrong, and then returns something that fits."""

    def guarded(kind: Kind, group: str, terms: dict[str, Any]) -> dict[str, Any]:
        return {
            name: term.replace(func=_guard(kind, f"{group}.{name}", term.func, problems))
            for name, term in terms.items()
        }

    commands = {}
    for name, term in guarded("command", "commands", config.commands).items():
        place = f"commands.{name}"
        changes: dict[str, Any] = {"errors": guarded("error", f"{place}.errors", term.errors)}
        if term.refine is not None:
            changes["refine"] = _guard("refine", f"{place}.refine", term.refine, problems)
        if term.steer is not None:
            changes["steer"] = _guard("steer", f"{place}.steer", term.steer, problems)
        commands[name] = term.replace(**changes)
    return replace(
        config,
        observations={
            group: guarded("observation", f"observations.{group}", terms)
            for group, terms in config.observations.items()
        },
        rewards=guarded("reward", "rewards", config.rewards),
        terminations=guarded("termination", "terminations", config.terminations),
        successes=guarded("success", "successes", config.successes),
        commands=commands,
        events={
            name: term.replace(func=_guard_event(f"events.{name}", term.func, term.mode, problems))
            for name, term in config.events.items()
        },
        curriculum=guarded("curriculum", "curriculum", config.curriculum),
    )


def _guard(kind: Kind, name: str, func: Callable[..., Any], problems: dict[str, str]) -> Callable[..., Any]:
    @functools.wraps(func)
    def call(env: Env, *args: Any, **params: Any) -> Any:
        before = env.read_only.copy()
        try:
            value = func(env, *args, **params)
        except Exception as error:
            env.read_only.restore(before)
            problems.setdefault(name, _describe_error(func, error, env, params))
            return _substitute(kind, env, args)
        # Before anything is undone: the function may have returned a view.
        value = value.clone() if isinstance(value, torch.Tensor) else value
        problem = (
            env.read_only.restore(before)
            or find_result_problem(kind, value, env.num_envs, env.device)
            or _find_other_size(kind, name, env, value, args)
        )
        if problem is None and not value.isfinite().all() and _is_finite(env):
            numbers = sorted({str(number) for number in value[~value.isfinite()].tolist()})
            problem = f"returned {' and '.join(numbers)} in {int((~value.isfinite()).sum())} of {value.numel()} values"
            problem += "; give finite numbers"
        if problem is None:
            return value
        problems.setdefault(name, f"{func.__name__}() {problem}")
        return _substitute(kind, env, args)

    return call


def _guard_event(name: str, func: Callable[..., Any], mode: str, problems: dict[str, str]) -> Callable[..., Any]:
    @functools.wraps(func)
    def call(env: Env, worlds: Worlds, **params: Any) -> None:
        before, watched = (worlds.qpos.clone(), worlds.qvel.clone()), env.read_only.copy()
        problem = None
        try:
            value = func(env, worlds, **params)
            problem = env.read_only.restore(watched) or find_result_problem("event", value, env.num_envs, env.device)
            changed = torch.cat([worlds.qpos, worlds.qvel], dim=1)[worlds.mask]  # no other worlds are read afterwards
            if problem is None and not changed.isfinite().all():
                problem = "left numbers in worlds.qpos or worlds.qvel that are not finite"
            if problem is None and mode == "interval" and not torch.equal(worlds.qpos, before[0]):
                problem = "changed worlds.qpos, which an interval event may not; change worlds.qvel, or use reset_event"
            problem = problem and f"{func.__name__}() {problem}"
        except Exception as error:
            env.read_only.restore(watched)
            problem = _describe_error(func, error, env, params)
            if isinstance(error, AttributeError) and "cannot assign to field" in problem:
                problem += "; write into it, as in worlds.qpos[:, 0] += …"
        if problem is not None:
            problems.setdefault(name, problem)
            worlds.qpos.copy_(before[0])
            worlds.qvel.copy_(before[1])

    return call


def _describe_error(func: Callable[..., Any], error: Exception, env: Env, params: dict[str, Any]) -> str:
    """Say what a function raised; of a built-in one rather the sizes of what its parameters name."""
    if isinstance(error, RequestError):
        return str(error)
    if not func.__module__.startswith("mjtrain.mdp"):
        return describe_exception(func, error)
    sizes = [f"{name} has {size}" for name, value in params.items() if (size := _measure_param(env, name, value))]
    named = "; ".join(sizes) or ", ".join(f"{name} is {value!r}" for name, value in params.items())
    return f"{func.__name__}() {_UNUSABLE}: {named}"


def _measure_param(env: Env, name: str, value: Any) -> str:
    """Say how many columns a parameter stands for, or how many values it has; empty for a number or a string."""
    kind = name.rsplit("_", 1)[-1].removesuffix("s")
    read = {"joint": env.qpos, "object": env.qpos, "sensor": env.sensor, "command": env.command}.get(kind)
    if read is None:
        return f"{len(value)} values" if isinstance(value, tuple | list) else ""
    try:
        return f"{read(value).shape[1]} columns"
    except (RequestError, IndexError):  # a name that does not exist, or a command that is wrong itself
        return ""


def _find_other_size(kind: Kind, name: str, env: Env, value: torch.Tensor, args: tuple[Any, ...]) -> str | None:
    """Compare the size of a command with the one that it must have."""
    if kind == "refine" and args[1] is not None and value.shape != args[1].shape:
        return f"returned {value.shape[1]} columns, and {args[1].shape[1]} at the start"
    if kind == "steer" and value.shape != (drawn := env.drawn_command(name.split(".")[1])).shape:
        return f"returned {value.shape[1]} columns; a draw of this command has {drawn.shape[1]}"
    return None


def _substitute(kind: Kind, env: Env, args: tuple[Any, ...]) -> torch.Tensor:
    """Return something that fits in place of what does not."""
    if kind == "refine":
        return (args[0] if args[1] is None else args[1]).clone()
    if kind in ("termination", "success"):
        return torch.zeros(env.num_envs, dtype=torch.bool)
    if kind == "steer":
        return torch.zeros(())
    return torch.zeros(env.num_envs, 1) if kind in ("observation", "command") else torch.zeros(env.num_envs)


def _is_finite(env: Env) -> bool:
    """Whether the worlds are; where they are not, the NaN guard has them."""
    return bool(env.state.qpos.isfinite().all() and env.state.qvel.isfinite().all())


def _without_consequences(problems: dict[str, str]) -> dict[str, str]:
    """Leave out exceptions that may only come from a command, an event or a level that is wrong itself."""
    wrong = [name for name in problems if name.startswith(_UPSTREAM)]
    if not wrong:
        return problems

    def is_consequence(name: str) -> bool:
        """Whether the term is none of those, or a part of one of them, such as the refine of a command."""
        return name not in wrong or any(name.startswith(f"{other}.") for other in wrong)

    return {
        name: problem
        for name, problem in problems.items()
        if not (is_consequence(name) and any(word in problem for word in ("() raised ", _UNUSABLE)))
    }
