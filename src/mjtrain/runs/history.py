"""Which runs there are below a log root, how far they came, and how they ended."""

import fcntl
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
from mjtrain.runs.run_dir import read_params
from mjtrain.runs.search import read_task
from mjtrain.runtime.event_log import METRICS_FILE, MetricLines

State = Literal["running", "done", "stopped", "failed", "killed", "unknown"]

TAIL_BYTES = 1 << 18
"""How much is read of the end of a long metrics.jsonl."""

CLOCK_TOLERANCE_S = 5.0
"""A crash file older than the last metrics by more than this is from before a restart."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run, as `mjtrain runs` lists it."""

    run_dir: Path
    """Its directory."""

    task: str
    """Task that it trains; the name of its folder if it recorded none."""

    started: str
    """When it was started for the first time, local time in ISO format."""

    iterations: int
    """Iterations in metrics.jsonl."""

    max_iterations: int | None
    """Iterations that it was asked for; None if it recorded none."""

    reward: float | None
    """Mean return of the last iteration; None before an episode has ended."""

    state: State
    """running: a process trains in it. done: all iterations. stopped: by a signal, after saving. failed: by an error.
    killed: the process ended without recording why. unknown: nothing was recorded, or it runs on another host."""

    detail: str
    """The signal, the cause of the failure, or the host; empty if there is nothing to say."""

    num_checkpoints: int
    """Checkpoints in its directory."""

    last_checkpoint: int | None
    """Iteration of the newest one."""

    def to_plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**vars(self), "run_dir": str(self.run_dir)}


def list_runs(log_root: Path, task: str | None = None) -> list[RunSummary]:
    """List the runs below a log root, the newest first.

    Args:
        log_root: Folder of the folders of tasks.
        task: Only runs that recorded this task, and those in a folder of this name; a name in any case. None for all.
    """
    run_dirs = [params.parent for params in log_root.glob("*/*/params")]
    found = [summarise_run(run_dir) for run_dir in run_dirs if task is None or _is_of_task(run_dir, task)]
    return sorted(found, key=lambda run: (run.started, str(run.run_dir)), reverse=True)


def _is_of_task(run_dir: Path, task: str) -> bool:
    is_in_folder = ":" not in task and run_dir.parent.name.lower() == folder_name(task)
    return is_in_folder or is_same_task(read_task(run_dir), task)


def summarise_run(run_dir: Path) -> RunSummary:
    """Read how far a run came and how it ended; a run in progress is not disturbed."""
    launch = read_params(run_dir, "launch")
    row, end = _read_last(run_dir / METRICS_FILE)
    iterations = row.get("iteration", 0)
    max_iterations = launch.get("run", {}).get("max_iterations")
    checkpoints = list_checkpoints(run_dir)
    last_checkpoint = max(map(checkpoint_iteration, checkpoints), default=None)
    is_whole = max_iterations is not None and iterations >= max_iterations and last_checkpoint == iterations
    state, detail = _find_state(run_dir, end, launch.get("host"), is_whole=is_whole)
    return RunSummary(
        run_dir=run_dir,
        task=launch.get("task", run_dir.parent.name),
        started=_find_start(run_dir),
        iterations=iterations,
        max_iterations=max_iterations,
        reward=row.get("mean_reward"),
        state=state,
        detail=detail,
        num_checkpoints=len(checkpoints),
        last_checkpoint=last_checkpoint,
    )


def is_claimed(run_dir: Path) -> bool:
    """Tell whether a process trains in a run directory, see `run_dir.claim_run_dir`.

    The lock is asked for in shared mode and given back at once. `claim_run_dir` tries again for longer than that.
    """
    try:
        descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(descriptor)
    return False


def _find_state(run_dir: Path, end: dict[str, Any] | None, host: str | None, *, is_whole: bool) -> tuple[State, str]:
    """Decide how a run ended, and what there is to say about it.

    Args:
        run_dir: Its directory.
        end: The event that ends its metrics.jsonl; None without.
        host: Name of the host that it recorded. Runs that recorded one also record their end.
        is_whole: Whether it has all iterations and the last checkpoint.
    """
    if is_claimed(run_dir):
        return "running", ""
    if end is not None:
        return end.get("how", "unknown"), end.get("signal") or end.get("cause") or ""
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


def _read_last(path: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the last iteration in a metrics.jsonl, and the event "end" if nothing was written after it."""
    end = None
    for row in MetricLines(_lines_backwards(path)):
        if row.get("event") == "end" and end is None:
            end = row
        elif "event" not in row:
            return row, end or None
        elif row.get("event") == "restart" and end is None:
            end = {}  # started again after an earlier end
    return {}, end or None


def _lines_backwards(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file from the last to the first; of a long file its end, and then all of it."""
    try:
        with path.open("rb") as file:
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
    files = sorted(run_dir.glob("crash/*.txt"), key=lambda path: path.stat().st_mtime)
    metrics = run_dir / METRICS_FILE
    if not files:
        return None
    written = metrics.stat().st_mtime if metrics.exists() else 0.0
    if files[-1].stat().st_mtime < written - CLOCK_TOLERANCE_S:
        return None
    causes = re.findall(r"^FAILED: (.*)$", files[-1].read_text(errors="replace"), re.MULTILINE)
    return causes[-1] if causes else files[-1].name


def _find_start(run_dir: Path) -> str:
    """Read when a run was started from its name, or else from its oldest file."""
    stamp = re.match(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", run_dir.name)
    if stamp is not None:
        return datetime.strptime(stamp[0], "%Y-%m-%d_%H-%M-%S").isoformat()
    times = [path.stat().st_mtime for path in (run_dir, *run_dir.glob("params/*"))]
    return datetime.fromtimestamp(min(times)).isoformat(timespec="seconds")
