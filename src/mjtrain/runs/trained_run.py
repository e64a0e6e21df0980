"""Finds what was trained on a task: the run, its recorded configs and its checkpoint."""

from dataclasses import dataclass, replace
from pathlib import Path

from mjtrain.catalog import is_same_task, load_task, resolve_task_name
from mjtrain.config import AgentConfig, EnvConfig, TaskConfig, from_plain
from mjtrain.errors import RequestError
from mjtrain.runs.robot import find_robot, with_absolute_file
from mjtrain.runs.run_dir import experiment_name, find_newest_run, load_params, open_run


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """What a policy was trained with, as its run recorded it."""

    task: str
    """Name of the registered task, or the path of its factory."""

    env: EnvConfig
    """The MDP. The file of its robot is the run's own copy, an absolute path."""

    agent: AgentConfig
    """Networks and algorithm."""

    run_dir: Path | None = None
    """The run directory, absolute; None for a checkpoint outside of a run or an untrained task."""

    checkpoint: Path | None = None
    """The checkpoint file, absolute; None for an untrained task."""

    notices: tuple[str, ...] = ()
    """A line for each run or checkpoint that was passed over, and for a robot that is not the recorded one."""


def find_trained_run(
    task: str, *, run: str | None = None, checkpoint: str | None = None, log_root: str = "logs"
) -> TrainedRun:
    """Find a checkpoint, else a run, else the newest run of the task that has a valid checkpoint.

    The configs are those that the run recorded, so networks and environment are the trained ones even if the task's
    code has changed. A checkpoint outside of a run is used with the task as it is now.

    Args:
        task: Name of a task, or path of a factory.
        run: Run directory, or its name below the task's folder.
        checkpoint: File.
        log_root: Folder below which runs live.

    Raises:
        RequestError: It does not exist, is damaged, or is of another task.
    """
    name, defaults = resolve_task_name(task), load_task(task)
    if checkpoint is not None:
        path = Path(checkpoint).absolute()
        if path.is_dir():
            raise RequestError(
                f"--checkpoint {path}: is a folder; give a file such as model_300.pt, or --run for a run"
            )
        run_dir, notices = (path.parent if (path.parent / "params").is_dir() else None), []
    else:
        folder = (Path(log_root) / (defaults.agent.experiment_name or experiment_name(name))).absolute()
        run_dir, path, notices = (
            find_newest_run(f"--log-root {log_root}", name, folder) if run is None else open_run("--run", run, folder)
        )
    if run_dir is None:
        return TrainedRun(task=name, env=defaults.env, agent=defaults.agent, checkpoint=path)
    found = _read_run(name, run_dir, defaults)
    return replace(found, checkpoint=path, notices=(*notices, *found.notices))


def find_replayed_run(task: str, dump: str) -> TrainedRun:
    """Find the task that a NaN dump was written for: as its run recorded it, or without a run as it is now.

    Raises:
        RequestError: The run is of another task, or unreadable.
    """
    run_dir = Path(dump).absolute().parent.parent
    if not (run_dir / "params").is_dir():
        return untrained(task)
    return _read_run(resolve_task_name(task), run_dir, load_task(task))


def untrained(task: str) -> TrainedRun:
    """Return a task as it is now, without a run.

    Raises:
        RequestError: There is no such task.
    """
    defaults = load_task(task)
    return TrainedRun(task=resolve_task_name(task), env=defaults.env, agent=defaults.agent)


def may_be_played_as(theirs: str | None, task: str) -> bool:
    """Return whether a run of one task may be played as another; a task made in Python has no name."""
    return theirs == "custom" or is_same_task(theirs, task)


def _read_run(task: str, run_dir: Path, defaults: TaskConfig) -> TrainedRun:
    """Read what a run recorded; the task must be loaded already, for functions of a task that is a file."""
    theirs = load_params(run_dir, "launch").get("task")
    if not may_be_played_as(theirs, task):
        raise RequestError(f"{run_dir}: is a run of task {theirs}, and this is {task}")
    try:
        env = from_plain(EnvConfig, load_params(run_dir, "env"))
        agent = from_plain(AgentConfig, load_params(run_dir, "agent"))
    except ValueError as error:
        raise RequestError(f"{run_dir / 'params'}: {error}") from error
    robot, notices = find_robot(run_dir, env.robot), ()
    if robot is None:
        there = with_absolute_file(defaults.env.robot)
        robot = replace(env.robot, file=there.file, spec=there.spec)
        notices = (f"{run_dir}: its robot {env.robot.label} is not here; using the robot of the task, {robot.label}",)
    return TrainedRun(task=task, env=replace(env, robot=robot), agent=agent, run_dir=run_dir, notices=notices)
