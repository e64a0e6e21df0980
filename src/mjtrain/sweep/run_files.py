"""What a run of a trial leaves in its folder: where it is, how far it came, and how it ended."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjtrain.checkpoint import find_valid_checkpoint
from mjtrain.plotting.curves import elapsed_s
from mjtrain.runs.history import is_claimed, summarise_run
from mjtrain.runs.metrics import parse_metrics


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """A run's metrics, as far as it came."""

    run_dir: Path | None = None
    """Its directory; None if it has none."""

    value: float | None = None
    """The metric where it was reported last; None if it never was, or was no finite number there."""

    iterations: int = 0
    """Iterations that it has."""

    env_steps: int = 0
    """Env steps of the whole job."""

    train_s: float = 0.0
    """Seconds of its iterations."""


def find_run_dir(log_root: Path, run_name: str) -> Path | None:
    """Return the newest run directory with a run name; None if there is none."""
    return max(log_root.glob(f"*/*_{run_name}"), key=lambda path: path.name, default=None)


def read_outcome(log_root: Path, run_name: str, metric: str) -> RunOutcome:
    """Read a run."""
    run_dir = find_run_dir(log_root, run_name)
    if run_dir is None:
        return RunOutcome()
    path = run_dir / "metrics.jsonl"
    rows, _ = parse_metrics(path.read_text(errors="replace").splitlines() if path.exists() else [])
    if not rows:
        return RunOutcome(run_dir=run_dir)
    reported = [row[metric] for row in rows if metric in row]
    return RunOutcome(
        run_dir=run_dir,
        value=reported[-1] if reported else None,
        iterations=rows[-1]["iteration"],
        env_steps=rows[-1]["env_steps_total"],
        train_s=elapsed_s(rows)[-1],
    )


def is_done(log_root: Path, run_name: str) -> bool:
    """Whether a run came to its planned end."""
    run_dir = find_run_dir(log_root, run_name)
    return run_dir is not None and summarise_run(run_dir).state == "done"


def read_cause(run_dir: Path | None) -> str:
    """Return why a run failed, as it recorded it; empty if it did not."""
    if run_dir is None:
        return ""
    summary = summarise_run(run_dir)
    return summary.detail if summary.state == "failed" else ""


def remove_stillborn(log_root: Path, run_name: str) -> None:
    """Remove the directories of starts of a run that were killed before they saved anything."""
    for run_dir in log_root.glob(f"*/*_{run_name}"):
        if find_valid_checkpoint(run_dir)[0] is None and not is_claimed(run_dir):
            shutil.rmtree(run_dir, ignore_errors=True)


class MetricFollower:
    """Reads the lines of a run's metrics.jsonl as they are written."""

    def __init__(self, log_root: Path, run_name: str) -> None:
        self._log_root = log_root
        self._run_name = run_name
        self._path: Path | None = None
        self._file: tuple[int, int] = (0, 0)
        """Inode and bytes that were read."""

    def read(self) -> list[dict[str, Any]]:
        """Return the iterations that are new; after a resume some of them may be known already."""
        if self._path is None:
            run_dir = find_run_dir(self._log_root, self._run_name)
            if run_dir is None:
                return []
            self._path = run_dir / "metrics.jsonl"
        try:
            with self._path.open("rb") as file:
                inode, done = self._file
                if inode == self._path.stat().st_ino:
                    file.seek(done)
                else:  # a resumed run has written it anew
                    inode, done = self._path.stat().st_ino, 0
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._file = (inode, done + len(whole))
        rows = [_parse(line) for line in whole.splitlines()]
        return [row for row in rows if "iteration" in row and "event" not in row]


def _parse(line: bytes) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError:
        return {}
