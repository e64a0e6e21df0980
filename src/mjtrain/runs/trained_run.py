"""Finds what was trained on a task: the run, its functions, its checkpoint, and its configs.

A run must load, so settings that are refused today are dropped, or named in a line.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mjtrain.config import (
    ActuatorConfig,
    AgentConfig,
    AnyEnvConfig,
    EnvConfig,
    LearnerConfig,
    SensorConfig,
    TaskConfig,
    TerminationTerm,
    from_plain,
    to_plain,
)
from mjtrain.config.plain import collect_functions, is_importable
from mjtrain.env.catalog import CUSTOM, is_same_task, load_task, resolve_task_name, task_file
from mjtrain.env.term_check import find_term_problems
from mjtrain.runs.bundle import WEIGHTS
from mjtrain.runs.bundle_places import is_place, open_bundle
from mjtrain.runs.checkpoint import BEST, find_best, hold_checkpoint, require_checkpoint
from mjtrain.runs.history import RunSearch, find_newest_run, open_run, recorded_task
from mjtrain.runs.robot import find_robot, with_absolute_file
from mjtrain.runs.run_dir import list_differences, load_params, parse_agent, read_learner
from mjtrain.runs.sources import list_code, list_code_changes, restore_data
from mjtrain.runs.storage.store import hide_query
from mjtrain.runs.trust import Trust
from mjtrain.runtime.errors import RequestError

_kept: dict[str, dict[str, Callable[..., Any]]] = {}
"""By `started` in params/launch.yaml, which a copy of a run has too: functions by their paths in the config."""


def keep_functions(record: Mapping[str, Any], env: AnyEnvConfig) -> None:
    """Keep the functions of a run that is about to be trained."""
    functions = {path: func for path, func in collect_functions(env).items() if not is_importable(func)}
    if functions:
        _kept[record["started"]] = functions


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """What a policy was trained with, as its run recorded it."""

    task: str
    """Name of the registered task, or the path of its factory."""

    env: EnvConfig | Any
    """The MDP, whose robot's file is the run's own copy, an absolute path; or someone else's environment."""

    agent: AgentConfig
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    """Which library learned it, and its settings. A checkpoint outside of a run knows only the library."""

    run_dir: Path | None = None
    """The run directory, absolute; None for a checkpoint outside of a run or an untrained task."""

    checkpoint: Path | None = None
    """The checkpoint file, absolute; None for an untrained task."""

    place: str | None = None
    """Place of a shared policy, as it was given, without the query of a URL; None for any other."""

    notices: tuple[str, ...] = ()
    """A line for each run or checkpoint that was passed over, and for a robot, code or data that is not what the run
    was trained with."""

    @property
    def own_env(self) -> EnvConfig:
        """The MDP, for callers that need worlds of mjtrain."""
        if not isinstance(self.env, EnvConfig):
            raise RequestError(f"{self.env.label}: brings its own physics; viewers, videos and replays need mjtrain's")
        return self.env


def find_trained_run(
    task: str, *, run: str | None = None, checkpoint: str | None = None, log_root: str = "logs", trust: bool = False
) -> TrainedRun:
    """Find a checkpoint, else a run, else the newest run of the task that has a valid checkpoint.

    The configs are those that the run recorded, so networks and environment are the trained ones even if the task's
    code has changed. A checkpoint outside of a run is used with the task as it is now.

    Args:
        task: Name of a task, path of a factory, or a run directory or policy bundle, whose task is the one that it
            recorded.
        run: Run directory, or its name; or a bundle, see `bundle_places.is_place`.
        checkpoint: File; of a run also its name there. "best" or {run}/best: the best one of the run.
        trust: Whether the run may name code that is not known here, see `runs.trust`.
    """
    if is_place(task) or (run is not None and is_place(run)):
        return _open_bundle(task, run, checkpoint, trust=trust)
    if is_run(task):
        return _open_run_dir(Path(task).absolute(), run, checkpoint, trust=trust)
    name, defaults = resolve_task_name(task), load_task(task)
    if run is None and checkpoint is not None and checkpoint != BEST:
        path = _check_file(Path(checkpoint).absolute())
        run_dir, notices = (path.parent if is_run(path.parent) else None), []
    else:
        search = RunSearch.for_task(name, log_root, defaults.agent.experiment_name or defaults.name)
        run_dir, path, notices = (
            find_newest_run(f"--log-root {log_root}", search) if run is None else open_run("--run", run, search)
        )
        if checkpoint is not None:
            path = _find_checkpoint(run_dir, checkpoint)
    hold_checkpoint(path)
    if run_dir is None:
        return TrainedRun(task=name, env=defaults.env, agent=defaults.agent, checkpoint=path)
    found = _read_run(Trust(run_dir=run_dir, task=name, is_named=True, everything=trust), defaults)
    return replace(found, checkpoint=path, notices=(*notices, *found.notices))


def is_run(place: str | Path) -> bool:
    """Return whether a folder is a run directory."""
    return (Path(place) / "params").is_dir()


def read_run(run_dir: Path, *, trust: bool = False) -> TrainedRun:
    """Read what a run recorded, its task included, without a checkpoint; `trust` as for `find_trained_run`."""
    task = recorded_task(load_params(run_dir, "launch")) or CUSTOM
    rule = Trust(run_dir=run_dir, task=task, is_named=False, everything=trust)
    return _read_run(rule, *_try_to_load(rule))


def _open_bundle(task: str, run: str | None, checkpoint: str | None, *, trust: bool) -> TrainedRun:
    """Open a policy bundle, as the task that it recorded or as the one that was named."""
    place = run if run is not None and not is_place(task) else task
    for flag, value in (("--checkpoint", checkpoint), ("--run", None if place == run else run)):
        if value is not None:
            shown = hide_query(place)
            raise RequestError(f"{flag} {hide_query(value)}: {shown} is one policy already; leave the flag out")
    if place == task:
        folder = open_bundle(place)
        return replace(read_run(folder, trust=trust), checkpoint=folder / WEIGHTS, place=hide_query(place))
    name, defaults = resolve_task_name(task), load_task(task)
    folder = open_bundle(place)
    rule = Trust(run_dir=folder, task=name, is_named=True, everything=trust)
    return replace(_read_run(rule, defaults), checkpoint=folder / WEIGHTS, place=hide_query(place))


def _open_run_dir(run_dir: Path, run: str | None, checkpoint: str | None, *, trust: bool) -> TrainedRun:
    if run is not None:
        raise RequestError(f"--run {run}: {run_dir} is a run already; give a task with --run, or a run alone")
    found = read_run(run_dir, trust=trust)
    if checkpoint is None:
        path, problems = require_checkpoint(run_dir, str(run_dir))
    else:
        path, problems = _find_checkpoint(run_dir, checkpoint), []
    hold_checkpoint(path)
    return replace(found, checkpoint=path, notices=(*problems, *found.notices))


def _find_checkpoint(run_dir: Path, checkpoint: str) -> Path:
    if checkpoint == BEST:
        return find_best(run_dir, "--checkpoint best")
    within = run_dir / checkpoint
    return _check_file(within if within.is_file() else Path(checkpoint).absolute())


def _check_file(path: Path) -> Path:
    if path.is_dir():  # first, because a path that is too long is then named as it was given
        raise RequestError(f"--checkpoint {path}: is a folder; give a file such as model_300.pt, or --run for a run")
    if path.name == BEST and is_run(path.parent):
        return find_best(path.parent, f"--checkpoint {path}")
    return path


def _try_to_load(trust: Trust) -> tuple[TaskConfig | None, str | None]:
    """Load the task of a run, whose terms may need its code; a task that was made in Python cannot be loaded."""
    task = trust.task
    if trust.find_objection() is not None:
        return None, None
    try:
        return load_task(task), None
    except RequestError as error:
        hint = "; if the file was moved, give its path as the task, and the run as --run" if task_file(task) else ""
        return None, f"{error}{hint}" if ":" in task else None


def find_replayed_run(task: str, dump: str, *, trust: bool = False) -> TrainedRun:
    """Find the task that a NaN dump was written for: as its run recorded it, or without a run as it is now."""
    run_dir = Path(dump).absolute().parent.parent
    if is_run(task):
        return _open_run_dir(Path(task).absolute(), None, None, trust=trust)
    if not is_run(run_dir):
        return make_untrained_run(task)
    rule = Trust(run_dir=run_dir, task=resolve_task_name(task), is_named=True, everything=trust)
    return _read_run(rule, load_task(task))


def make_untrained_run(task: str) -> TrainedRun:
    """Return a task as it is now, without a run."""
    defaults = load_task(task)
    return TrainedRun(task=resolve_task_name(task), env=defaults.env, agent=defaults.agent)


def may_be_played_as(theirs: str | None, task: str) -> bool:
    """Return whether a run of one task may be played as another; a task made in Python without a name as any."""
    return theirs == CUSTOM or is_same_task(theirs, task)


def _read_run(trust: Trust, defaults: TaskConfig | None, problem: str | None = None) -> TrainedRun:
    task, run_dir = trust.task, trust.run_dir
    record = load_params(run_dir, "launch")
    theirs = recorded_task(record)
    if theirs is None:
        raise RequestError(f"{run_dir / 'params' / 'launch.yaml'}: names no task; it is not what a training records")
    if not may_be_played_as(theirs, task):
        raise RequestError(f"{run_dir}: is a run of task {theirs}, and this is {task}")
    functions = {} if defaults is None else collect_functions(defaults.env)
    functions = {**functions, **_kept.get(str(record.get("started")), {})}
    try:
        env = from_plain(AnyEnvConfig, load_params(run_dir, "env"), functions=functions, load=trust.load)
        agent = parse_agent(load_params(run_dir, "agent"))
        trust.check_env(env)
        trust.check_agent(to_plain(agent), defaults)
    except RequestError:
        raise
    except ValueError as error:
        because = f"; {problem}" if problem else ""
        if any(word in str(error) for word in ("__main__:", "<locals>", "<lambda>")):
            because = f"; only the process that trained the run has it{because}"
        raise RequestError(f"{run_dir / 'params'}: {error}{because}") from error
    notices = list_code_changes(run_dir, list_code(env, task_file(task)))
    if isinstance(env, EnvConfig):
        env, lines = _adapt_recorded(env)
        notices += [f"{run_dir}: {line}" for line in lines]
        env, data_changes = restore_data(run_dir, env)
        env, robot_changes = _restore_robot(run_dir, env, defaults)
        notices = [*notices, *data_changes, *robot_changes]
    return TrainedRun(
        task=task, env=env, agent=agent, learner=read_learner(run_dir), run_dir=run_dir, notices=tuple(notices)
    )


def _restore_robot(run_dir: Path, env: EnvConfig, defaults: TaskConfig | None) -> tuple[EnvConfig, list[str]]:
    """Let a recorded environment have the run's copy of its robot, or else the robot of the task and a line."""
    robot, notices = find_robot(run_dir, env.robot), []
    if robot is None:
        if defaults is None or not isinstance(defaults.env, EnvConfig):
            raise RequestError(f"{run_dir}: its robot {env.robot.label} is not here")
        there = with_absolute_file(defaults.env.robot)
        robot = replace(env.robot, file=there.file, spec=there.spec)
        line = f"{run_dir}: its robot {env.robot.label} is not here; using the robot of the task, {robot.label}"
        notices = [line]
    return replace(env, robot=robot), notices


def _adapt_recorded(env: EnvConfig) -> tuple[EnvConfig, list[str]]:
    """Drop the unused, with a line for that and for each number that a new training would refuse; a run must load."""
    if find_term_problems(env, limits=False):
        return env, []  # no environment can be made of it, and that is said where it is tried
    used, lines = drop_unused(env)
    return used, [*lines, *(f"recorded {line}" for line in find_term_problems(used))]


def drop_unused(env: EnvConfig) -> tuple[EnvConfig, list[str]]:
    """Remove settings that had no effect when the run was trained and are refused today, with a line for each."""
    robot = replace(
        env.robot,
        sensors={name: _read_sensor(sensor) for name, sensor in env.robot.sensors.items()},
        actuators={name: _read_actuator(actuator) for name, actuator in env.robot.actuators.items()},
    )
    used = replace(
        env,
        robot=robot,
        terminations={name: _read_termination(term) for name, term in env.terminations.items()},
        events={
            name: term
            for name, term in env.events.items()  # an event that pushes where an episode begins, which ends pushes
            if to_plain(term.func) != "mjtrain.mdp.events:apply_body_impulse" or term.mode == "interval"
        },
    )
    lines = [] if used == env else list_differences("env", to_plain(env), to_plain(used))
    return used, [f"{line}, which makes no difference" for line in lines]


def _read_sensor(sensor: SensorConfig) -> SensorConfig:
    if sensor.type != "contact":
        unused = ("data", "reduce", "num")
        return replace(sensor, **{name: getattr(SensorConfig, name) for name in unused})
    from mjtrain.sim.robots.layout import CONTACT_WIDTHS  # imports torch

    if not set(sensor.data) <= set(CONTACT_WIDTHS):
        return sensor
    return replace(sensor, data=tuple(word for word in CONTACT_WIDTHS if word in sensor.data))


def _read_actuator(actuator: ActuatorConfig) -> ActuatorConfig:
    from mjtrain.sim.robots.completion.actuators import UNUSED  # imports MuJoCo

    return replace(actuator, **dict.fromkeys(UNUSED.get(actuator.type, ()), 0.0))


def _read_termination(term: TerminationTerm) -> TerminationTerm:
    if to_plain(term.func) != "mjtrain.mdp.terminations:joint_out_of_range" or term.params.get("limit") is None:
        return term
    return replace(term, params={name: value for name, value in term.params.items() if name not in ("low", "high")})
