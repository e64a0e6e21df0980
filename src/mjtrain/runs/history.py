"""Runs below a log root: found by the task that they recorded, with how far they came and how they ended."""

import glob
import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

import yaml

from mjtrain.config import TrainConfig
from mjtrain.env.catalog import folder_name, is_same_task
from mjtrain.runs.checkpoint import (
    checkpoint_iteration,
    describe_lack,
    find_valid_checkpoint,
    list_checkpoints,
    require_checkpoint,
)
from mjtrain.runs.claim import is_claimed
from mjtrain.runs.run_dir import experiment_dir, parse_yaml, read_params
from mjtrain.runtime.errors import RequestError, summarise
from mjtrain.runtime.event_log import METRICS_FILE, MetricLines
from mjtrain.runtime.files import open_regular, read_regular

_HEAD_BYTES = 4096
"""How much is read of params/launch.yaml to see which task it is of."""

_NAMING = timedelta(minutes=1)
"""The time in a run's name and its recorded start differ by less than this where both are of one time zone."""

State = Literal["running", "done", "stopped", "failed", "killed", "unknown", "unreadable"]

ENDS: tuple[State, ...] = ("done", "stopped", "failed")
"""States that the event "end" may record."""

TAIL_BYTES = 1 << 18
"""How much is read of the end of a long metrics.jsonl."""

_HUGE = 1e300
"""Numbers beyond this are nobody's reward, and integers of JSON may not even be floats."""

CLOCK_TOLERANCE_S = 5.0
"""A crash file older than the last metrics by more than this is from before a restart."""


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
    # A name has the time of some host's clock and zone, and an hour of autumn comes twice. The westernmost zone is the
    # latest that it can mean.
    named = {path: time for path in run_dirs if (time := name_time(path)) is not None}
    latest_s = {path: time.replace(tzinfo=timezone(timedelta(hours=-12))).timestamp() for path, time in named.items()}
    waiting = sorted(named, key=lambda path: path.name)
    ages = {path: _age(path) for path in run_dirs if path not in named}
    while waiting or ages:
        newest = max(ages, key=lambda path: ages[path], default=None)
        if waiting and (newest is None or latest_s[waiting[-1]] >= ages[newest][0]):
            run_dir = waiting.pop()
            ages[run_dir] = _age(run_dir)
        elif newest is not None:
            yield newest
            del ages[newest]


def _age(run_dir: Path) -> tuple[float, str, str]:
    """Return what sorts runs by age, the oldest first; what has no time is the oldest."""
    return find_start(run_dir) or 0.0, run_dir.name, str(run_dir)


def name_time(run_dir: Path) -> datetime | None:
    """Return the time with which the name of a run begins; None if it is not a time."""
    stamp = re.match(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", run_dir.name)
    try:
        return None if stamp is None else datetime.strptime(stamp[0], "%Y-%m-%d_%H-%M-%S")
    except ValueError:
        return None


def find_start(run_dir: Path) -> float | None:
    """Return when a run was first started, in s since the epoch, by its record or its name; None if neither says it."""
    if starts := read_starts(list_records(run_dir), "started"):
        return min(starts)
    named = name_time(run_dir)
    try:
        return None if named is None else named.timestamp()
    except (ValueError, OverflowError):
        return None


def list_records(run_dir: Path) -> list[dict[str, Any]]:
    """Return the values at the beginning of the params/launch.yaml of each start of a run, up to its first mapping."""
    params = run_dir / "params"
    return [_read_head(file) for file in (params / "launch.yaml", *params.glob("previous/*/launch.yaml"))]


def read_starts(records: list[dict[str, Any]], *names: str) -> list[float]:
    """Return the times of these names that records have, in s since the epoch; earlier versions recorded none."""
    times = [_read_time(record.get(name)) for record in records for name in names]
    return [time for time in times if time is not None]


def _read_time(recorded: Any) -> float | None:
    try:
        time = recorded if isinstance(recorded, datetime) else datetime.fromisoformat(recorded)
        return time.astimezone().timestamp()  # which refuses what this time zone cannot show
    except (TypeError, ValueError, OverflowError):
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
    """Return the run here that --resume asks for, its newest valid checkpoint, and lines on what was passed over."""
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
        passed_over.append(f"passed over {run_dir}: {describe_lack(run_dir, problems)}")
    reasons = "".join(f"; {line}" for line in passed_over)
    place = search.folder if search.only_in_folder else search.log_root
    raise RequestError(f"{flag}: no run of {search.task} below {place} has a valid checkpoint{reasons}")


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run, as `mjtrain runs` lists it."""

    run_dir: Path
    task: str
    """Task that it trains; the name of its folder if it recorded none."""

    started: str
    """When it was started for the first time, local time in ISO format."""

    iterations: int = 0
    max_iterations: int | None = None
    """Iterations that it was asked for; None if it recorded none."""

    reward: float | None = None
    """Mean return of the last iteration; None before an episode has ended."""

    state: State
    """running: a process trains in it. done: all iterations. stopped: by a signal, after saving. failed: by an error.
    killed: the process ended without recording why. unknown: nothing was recorded, or it runs on another host.
    unreadable: its files cannot be understood."""

    detail: str
    """The signal, the cause of the failure, the host, or what cannot be read; empty if there is nothing to say."""

    num_checkpoints: int = 0
    last_checkpoint: int | None = None
    """Iteration of the newest one."""

    broken_lines: int = 0
    """Lines at the end of metrics.jsonl that cannot be read, and were skipped."""

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**vars(self), "run_dir": str(self.run_dir)}


def list_runs(log_root: Path, task: str | None = None) -> list[RunSummary]:
    """List the runs below a log root, the newest first: all, or those that recorded a task or are in its folder."""
    run_dirs = [params.parent for params in log_root.glob("*/*/params")]
    if task is not None:
        folder = None if ":" in task else folder_name(task)
        run_dirs = [
            run_dir
            for run_dir in run_dirs
            if run_dir.parent.name.lower() == folder or is_same_task(read_task(run_dir), task)
        ]
    ages = {run_dir: (find_start(run_dir) or _oldest_file(run_dir), str(run_dir)) for run_dir in run_dirs}
    return [try_to_summarise(run_dir) for run_dir in sorted(run_dirs, key=lambda path: ages[path], reverse=True)]


def try_to_summarise(run_dir: Path) -> RunSummary:
    """Summarise a run; whatever its files hold, the others are listed."""
    try:
        with suppress(FileNotFoundError):
            open_regular(run_dir / METRICS_FILE).close()  # or iterations that cannot be read would look like none
        return summarise_run(run_dir)
    except Exception as error:
        task, started = run_dir.parent.name, _show_start(run_dir)
        return RunSummary(run_dir=run_dir, task=task, started=started, state="unreadable", detail=summarise(error))


def summarise_run(run_dir: Path) -> RunSummary:
    """Read how far a run came and how it ended, without disturbing it; raises a ValueError for broken params."""
    launch = read_params(run_dir, "launch")
    row, end, broken_lines = _read_last(run_dir / METRICS_FILE)
    iterations, reward = row.get("iteration", 0), row.get("mean_reward")
    run, task, host = launch.get("run") or {}, launch.get("task", run_dir.parent.name), launch.get("host")
    max_iterations = run.get("max_iterations") if isinstance(run, dict) else None
    for name, value, kinds in (("run", run, dict), ("task", task, str), ("host", host, str | None)):
        if not isinstance(value, kinds):
            raise ValueError(f"params/launch.yaml: {name} is {value!r}")
    if not isinstance(max_iterations, int | None):
        raise ValueError(f"params/launch.yaml: run.max_iterations is {max_iterations!r}")
    if not isinstance(total := run.get("total_env_steps"), int | None):
        raise ValueError(f"params/launch.yaml: run.total_env_steps is {total!r}")
    checkpoints = list_checkpoints(run_dir)
    last_checkpoint = max(map(checkpoint_iteration, checkpoints), default=None)
    # Iterations were counted with the ranks and environments of the last start, and earlier ones may have had others.
    done, wanted = (iterations, max_iterations) if total is None else (row.get("env_steps_total"), total)
    has_all = wanted is not None and isinstance(done, int | float) and done >= wanted
    state, detail = _find_state(run_dir, end, host, is_whole=has_all and last_checkpoint == iterations)
    return RunSummary(
        run_dir=run_dir,
        task=task,
        started=_show_start(run_dir),
        iterations=iterations,
        max_iterations=max_iterations,
        reward=reward if isinstance(reward, int | float) and abs(reward) < _HUGE else None,
        state=state,
        detail=detail,
        num_checkpoints=len(checkpoints),
        last_checkpoint=last_checkpoint,
        broken_lines=broken_lines,
    )


def _find_state(run_dir: Path, end: dict[str, Any] | None, host: str | None, *, is_whole: bool) -> tuple[State, str]:
    if is_claimed(run_dir):
        return "running", ""
    if end is not None:
        how: list[State] = [state for state in ENDS if state == end.get("how")]
        return how[0] if how else "unknown", str(end.get("signal") or end.get("cause") or "")
    if is_whole:
        return "done", ""
    cause = _read_crash(run_dir)
    if cause is not None:
        return "failed", cause
    if host is None:
        return "unknown", ""
    if host == socket.gethostname():
        return "killed", ""
    return "unknown", f"started on {host}"


def _read_last(path: Path) -> tuple[dict[str, Any], dict[str, Any] | None, int]:
    """Return the last iteration of a metrics.jsonl, the event "end" if it ends with that, and its broken lines."""
    end, lines = None, MetricLines(lines_backwards(path))
    for row in lines:
        if row.get("event") == "end" and end is None:
            end = row
        elif "event" not in row:
            return row, end or None, lines.skipped
        elif row.get("event") == "restart" and end is None:
            end = {}  # started again after an earlier end
    return {}, end or None, lines.skipped


def read_last_row(run_dir: Path) -> dict[str, Any]:
    """Return what a run's metrics.jsonl has of the last iteration; empty if there is none."""
    return next((row for row in MetricLines(lines_backwards(run_dir / METRICS_FILE)) if "event" not in row), {})


def lines_backwards(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file from the last to the first, none if it cannot be read.

    A long file is read completely only if more lines than those of its end are taken.
    """
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            first, *tail = file.read().splitlines(keepends=True) or [b""]
            yield from reversed(tail)
            file.seek(0)
            yield from reversed((file.read(max(0, size - TAIL_BYTES)) + first).splitlines(keepends=True))
    except OSError:
        return


def _read_crash(run_dir: Path) -> str | None:
    """Return the cause in the newest crash file; None if there is none, or the run continued after it."""
    files = sorted(run_dir.glob("crash/*.txt"), key=lambda path: path.lstat().st_mtime)
    metrics = run_dir / METRICS_FILE
    if not files:
        return None
    written = metrics.stat().st_mtime if metrics.exists() else 0.0
    if files[-1].stat().st_mtime < written - CLOCK_TOLERANCE_S:
        return None
    causes = re.findall(r"^FAILED: (.*)$", read_regular(files[-1]).decode(errors="replace"), re.MULTILINE)
    return causes[-1] if causes else files[-1].name


def _show_start(run_dir: Path) -> str:
    """Show when a run was started, in this host's time zone; the one in its name may be another host's."""
    named, local = name_time(run_dir), datetime.fromtimestamp(find_start(run_dir) or _oldest_file(run_dir))
    shown = named if named is not None and abs(local - named) < _NAMING else local
    return shown.isoformat(timespec="seconds")


def _oldest_file(run_dir: Path) -> float:
    try:
        return min(path.lstat().st_mtime for path in (run_dir, *run_dir.glob("params/*")))
    except OSError:  # the run was deleted meanwhile
        return 0.0
