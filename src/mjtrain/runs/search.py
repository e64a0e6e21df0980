"""Which runs of a task there are: found by the task that they recorded, in any folder below a log root."""

import glob
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import yaml

from mjtrain.config import TrainConfig
from mjtrain.env.catalog import folder_name, is_same_task
from mjtrain.runs.checkpoint import find_valid_checkpoint, require_checkpoint
from mjtrain.runs.run_dir import experiment_dir, parse_yaml, read_params
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import read_regular

_HEAD_BYTES = 4096
"""How much is read of params/launch.yaml to see which task it is of."""


@dataclass(frozen=True, kw_only=True)
class RunSearch:
    """Where runs of a task are looked for."""

    task: str
    """The task, as `catalog.resolve_task_name` returns it."""

    log_root: Path
    """Folder below which runs live, as {log_root}/{folder}/{run}; absolute."""

    folder: Path
    """Folder in which new runs of the task are made, absolute; what recorded no task counts as the task's there."""

    only_in_folder: bool = False
    """Whether no other folder is looked at."""

    @classmethod
    def for_training(cls, config: TrainConfig) -> "RunSearch":
        """Return where `train` looks: only in the folder that --agent.experiment-name names, if it is given."""
        return cls(
            task=config.task,
            log_root=Path(config.run.log_root).absolute(),
            folder=experiment_dir(config),
            only_in_folder=config.agent.experiment_name != "",
        )

    @classmethod
    def for_task(cls, task: str, log_root: str | Path, name: str | None = None) -> "RunSearch":
        """Return where other commands look."""
        root = Path(log_root).absolute()
        return cls(task=task, log_root=root, folder=root / (name or folder_name(task)))


def find_runs(search: RunSearch) -> Iterator[Path]:
    """Yield the directories of a task's runs, the newest first, absolute.

    Names begin with the time at which the run was started, so that only those that are asked for are opened, and others
    of the same day.
    """
    folders = [search.folder] if search.only_in_folder else _list_folders(search.log_root)
    run_dirs = [run_dir for folder in folders for run_dir in _list_folders(folder)]
    for run_dir in _newest_first(run_dirs):
        recorded = read_task(run_dir)
        if is_same_task(recorded, search.task) if recorded is not None else run_dir.parent == search.folder:
            yield run_dir


def _list_folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir() and os.access(entry.path, os.X_OK)]
    except OSError:
        return []


def _newest_first(run_dirs: list[Path]) -> Iterator[Path]:
    """Sort runs by their start; only the names that could come next are opened."""
    waiting = sorted((path for path in run_dirs if name_time(path) is not None), key=lambda path: path.name)
    ages = {path: _age(path) for path in run_dirs if name_time(path) is None}
    while waiting or ages:
        newest = max(ages, key=lambda path: ages[path], default=None)
        if waiting and (newest is None or _latest_start(waiting[-1]) >= ages[newest][0]):
            run_dir = waiting.pop()
            ages[run_dir] = _age(run_dir)
        elif newest is not None:
            yield newest
            del ages[newest]


def _age(run_dir: Path) -> tuple[float, str, str]:
    """Return what sorts runs by age, the oldest first; what has no time is the oldest."""
    return find_start(run_dir) or 0.0, run_dir.name, str(run_dir)


def _latest_start(run_dir: Path) -> float:
    """Return the latest time that a name can mean, in seconds since the epoch: that of the westernmost time zone."""
    # The time in a name is that of some host's clock and time zone, and an hour of autumn comes twice.
    named = name_time(run_dir)
    return 0.0 if named is None else named.replace(tzinfo=timezone(timedelta(hours=-12))).timestamp()


def name_time(run_dir: Path) -> datetime | None:
    """Return the time with which the name of a run begins; None if it is not a time."""
    stamp = re.match(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", run_dir.name)
    try:
        return None if stamp is None else datetime.strptime(stamp[0], "%Y-%m-%d_%H-%M-%S")
    except ValueError:
        return None


def find_start(run_dir: Path) -> float | None:
    """Return when a run was first started, in s since the epoch, by its record or its name; None if neither says it."""
    params = run_dir / "params"
    starts = []
    for file in (params / "launch.yaml", *params.glob("previous/*/launch.yaml")):
        recorded: Any = _read_head(file).get("started")
        try:
            started = recorded if isinstance(recorded, datetime) else datetime.fromisoformat(recorded)
            starts.append(started.timestamp())
        except (TypeError, ValueError, OverflowError):
            continue  # an earlier version recorded none
    if starts:
        return min(starts)
    named = name_time(run_dir)
    try:
        return None if named is None else named.timestamp()
    except (ValueError, OverflowError):
        return None


def read_task(run_dir: Path) -> str | None:
    """Read which task a run recorded, with the absolute path of its file if it has one; None if it recorded none."""
    record = _read_head(run_dir / "params" / "launch.yaml")
    return recorded_task(record if "task" in record else read_params(run_dir, "launch"))


def _read_head(file: Path) -> dict[str, Any]:
    """Read what comes before the first mapping in a params/launch.yaml; empty if it cannot be read."""
    try:
        head = read_regular(file, _HEAD_BYTES).decode(errors="replace")
        record = parse_yaml(re.split(r"^\w+:\n", head, maxsplit=1, flags=re.MULTILINE)[0])
    except (OSError, yaml.YAMLError):
        return {}
    return record if isinstance(record, dict) else {}


def recorded_task(record: dict[str, Any]) -> str | None:
    """Return the task that params/launch.yaml names, with the absolute path of its file if it has one."""
    task, file = record.get("task"), record.get("task_file")
    if not isinstance(task, str):
        return None
    return f"{file}:{task.rpartition(':')[2]}" if isinstance(file, str) else task


def find_run_to_resume(config: TrainConfig) -> tuple[Path, Path, list[str]]:
    """Find the run on this machine that --resume asks for.

    Returns:
        Its directory, its newest valid checkpoint, and a line for each run and checkpoint that was passed over.
    """
    asked, search = config.run.resume, RunSearch.for_training(config)
    return open_run("--resume", asked, search) if isinstance(asked, str) else find_newest_run("--resume", search)


def open_run(flag: str, name: str, search: RunSearch) -> tuple[Path, Path, list[str]]:
    """Open a run that a flag names by its path, or by its name; returns as `find_run_to_resume` does.

    Runs of the task are meant before others of the same name, and those in the task's folder before all.
    """
    others = sorted(search.log_root.glob(f"*/{glob.escape(name)}")) if Path(name).name == name else []
    others.sort(key=lambda run_dir: not is_same_task(read_task(run_dir), search.task))
    run_dir = next((place for place in (Path(name), search.folder / name, *others) if place.is_dir()), None)
    if run_dir is None:
        raise RequestError(f"{flag} {name}: no such run directory")
    checkpoint, problems = require_checkpoint(run_dir, f"{flag} {name}")
    return run_dir.absolute(), checkpoint.absolute(), problems


def find_newest_run(flag: str, search: RunSearch) -> tuple[Path, Path, list[str]]:
    """Find the newest run of a task that has a valid checkpoint; returns as `find_run_to_resume` does."""
    passed_over = []
    for run_dir in find_runs(search):
        checkpoint, problems = find_valid_checkpoint(run_dir)
        if checkpoint is not None:
            return run_dir, checkpoint, [*passed_over, *problems]
        passed_over.append(f"passed over {run_dir}: {'; '.join(problems) or 'no checkpoint found in it'}")
    reasons = "".join(f"; {line}" for line in passed_over)
    place = search.folder if search.only_in_folder else search.log_root
    raise RequestError(f"{flag}: no run of {search.task} below {place} has a valid checkpoint{reasons}")
