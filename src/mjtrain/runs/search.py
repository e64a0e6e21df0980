"""Which runs of a task there are: found by the task that they recorded, in any folder below a log root."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mjtrain.config import TrainConfig
from mjtrain.env.catalog import folder_name, is_same_task
from mjtrain.runs.checkpoint import find_valid_checkpoint
from mjtrain.runs.run_dir import experiment_dir, read_params
from mjtrain.runtime.errors import RequestError

_HEAD_BYTES = 4096
"""How much is read of params/launch.yaml to see which task it is of."""

_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may have been built without libyaml


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
        """Return where other commands look.

        Args:
            task: The task.
            log_root: Folder below which runs live.
            name: Name that the task gives itself.
        """
        root = Path(log_root).absolute()
        return cls(task=task, log_root=root, folder=root / (name or folder_name(task)))


def find_runs(search: RunSearch) -> Iterator[Path]:
    """Yield the directories of a task's runs, the newest first, absolute.

    Names begin with the time at which the run was started, so that only those that are asked for are opened.
    """
    folders = [search.folder] if search.only_in_folder else _list_folders(search.log_root)
    run_dirs = [run_dir for folder in folders for run_dir in _list_folders(folder)]
    for run_dir in sorted(run_dirs, key=_age, reverse=True):
        recorded = read_task(run_dir)
        if is_same_task(recorded, search.task) if recorded is not None else run_dir.parent == search.folder:
            yield run_dir


def _list_folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _age(run_dir: Path) -> tuple[bool, str, str]:
    """Return what sorts runs by age: first those whose names are no times, then those with times, the oldest first."""
    name = run_dir.name
    return re.match(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", name) is not None, name, str(run_dir)


def read_task(run_dir: Path) -> str | None:
    """Read which task a run recorded, with the absolute path of its file if it has one; None if it recorded none."""
    try:
        with (run_dir / "params" / "launch.yaml").open("rb") as file:
            head = file.read(_HEAD_BYTES).decode(errors="replace")
    except OSError:
        return None
    scalars = re.split(r"^\w+:\n", head, maxsplit=1, flags=re.MULTILINE)[0]  # what comes before the first mapping
    try:
        record = yaml.load(scalars, Loader=_YAML_LOADER)
    except yaml.YAMLError:
        record = None
    if not isinstance(record, dict) or "task" not in record:
        record = read_params(run_dir, "launch")
    return recorded_task(record)


def recorded_task(record: dict[str, Any]) -> str | None:
    """Return the task that params/launch.yaml names, with the absolute path of its file if it has one."""
    task, file = record.get("task"), record.get("task_file")
    return f"{file}:{str(task).rpartition(':')[2]}" if file else task


def find_run_to_resume(config: TrainConfig) -> tuple[Path, Path, list[str]]:
    """Find the run on this machine that --resume asks for.

    Returns:
        Its directory, its newest valid checkpoint, and a line for each run and checkpoint that was passed over.

    Raises:
        RequestError: There is none.
    """
    asked, search = config.run.resume, RunSearch.for_training(config)
    return open_run("--resume", asked, search) if isinstance(asked, str) else find_newest_run("--resume", search)


def open_run(flag: str, name: str, search: RunSearch) -> tuple[Path, Path, list[str]]:
    """Open a run that a flag names by its path, or by its name; returns as `find_run_to_resume` does.

    Runs of the task are meant before others of the same name, and those in the task's folder before all.

    Raises:
        RequestError: It is not there, or has no valid checkpoint.
    """
    others = sorted(search.log_root.glob(f"*/{name}")) if Path(name).name == name else []
    others.sort(key=lambda run_dir: not is_same_task(read_task(run_dir), search.task))
    run_dir = next((place for place in (Path(name), search.folder / name, *others) if place.is_dir()), None)
    if run_dir is None:
        raise RequestError(f"{flag} {name}: no such run directory")
    checkpoint, problems = find_valid_checkpoint(run_dir)
    if checkpoint is None:
        raise RequestError(f"{flag} {name}: {'; '.join(problems) or 'there is no checkpoint in it'}")
    return run_dir.absolute(), checkpoint.absolute(), problems


def find_newest_run(flag: str, search: RunSearch) -> tuple[Path, Path, list[str]]:
    """Find the newest run of a task that has a valid checkpoint; returns as `find_run_to_resume` does.

    Args:
        flag: What asks, for messages.
        search: Where to look.

    Raises:
        RequestError: There is none.
    """
    passed_over = []
    for run_dir in find_runs(search):
        checkpoint, problems = find_valid_checkpoint(run_dir)
        if checkpoint is not None:
            return run_dir, checkpoint, [*passed_over, *problems]
        passed_over.append(f"passed over {run_dir}: {'; '.join(problems) or 'there is no checkpoint in it'}")
    reasons = "".join(f"; {line}" for line in passed_over)
    place = search.folder if search.only_in_folder else search.log_root
    raise RequestError(f"{flag}: no run of {search.task} below {place} has a valid checkpoint{reasons}")
