"""Which runs there are below a log root, how far they came, and how they ended."""

import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from mjtrain.env.catalog import folder_name, is_same_task
from mjtrain.runs.checkpoint import checkpoint_iteration, list_checkpoints
from mjtrain.runs.claim import is_claimed
from mjtrain.runs.run_dir import read_params
from mjtrain.runs.search import find_start, name_time, read_task
from mjtrain.runtime.errors import summarise
from mjtrain.runtime.event_log import METRICS_FILE, MetricLines
from mjtrain.runtime.files import open_regular, read_regular

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
    """List the runs below a log root, the newest first.

    Args:
        task: Only runs that recorded this task, and those in a folder of this name; a name in any case. None for all.
    """
    run_dirs = [params.parent for params in log_root.glob("*/*/params")]
    run_dirs = [run_dir for run_dir in run_dirs if task is None or _is_of_task(run_dir, task)]
    ages = {run_dir: (find_start(run_dir) or _oldest_file(run_dir), str(run_dir)) for run_dir in run_dirs}
    return [_try_to_summarise(run_dir) for run_dir in sorted(run_dirs, key=lambda path: ages[path], reverse=True)]


def _try_to_summarise(run_dir: Path) -> RunSummary:
    """Summarise a run; whatever its files hold, the others are listed."""
    try:
        return summarise_run(run_dir)
    except Exception as error:
        task, started = run_dir.parent.name, _find_start(run_dir)
        return RunSummary(run_dir=run_dir, task=task, started=started, state="unreadable", detail=summarise(error))


def _is_of_task(run_dir: Path, task: str) -> bool:
    is_in_folder = ":" not in task and run_dir.parent.name.lower() == folder_name(task)
    return is_in_folder or is_same_task(read_task(run_dir), task)


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
    checkpoints = list_checkpoints(run_dir)
    last_checkpoint = max(map(checkpoint_iteration, checkpoints), default=None)
    is_whole = max_iterations is not None and iterations >= max_iterations and last_checkpoint == iterations
    state, detail = _find_state(run_dir, end, host, is_whole=is_whole)
    return RunSummary(
        run_dir=run_dir,
        task=task,
        started=_find_start(run_dir),
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


def _find_start(run_dir: Path) -> str:
    """Read when a run was started from its name, or else from its oldest file."""
    named = name_time(run_dir)
    return (named or datetime.fromtimestamp(_oldest_file(run_dir))).isoformat(timespec="seconds")


def _oldest_file(run_dir: Path) -> float:
    try:
        return min(path.lstat().st_mtime for path in (run_dir, *run_dir.glob("params/*")))
    except OSError:  # the run was deleted meanwhile
        return 0.0
