"""What the trials of a sweep leave in its folder: their runs, their results, and sweep.json."""

import contextlib
import glob
import itertools
import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from mjtrain.runs.checkpoint import find_valid_checkpoint, list_checkpoints
from mjtrain.runs.claim import is_claimed
from mjtrain.runs.history import summarise_run
from mjtrain.runs.metrics import read_metrics
from mjtrain.runtime.event_log import METRICS_FILE, MetricLines
from mjtrain.runtime.files import write_whole
from mjtrain.tools.plotting.curves import elapsed_s
from mjtrain.tools.sweep.plan import SweepPlan


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """A run's metrics, as far as it came."""

    run_dir: Path | None = None
    value: float | None = None
    """The metric where it was reported last; None if it never was, or was no finite number there."""

    iterations: int = 0
    env_steps: int = 0
    """Env steps of the whole job."""

    train_s: float = 0.0
    """Seconds of its iterations."""


def find_run_dir(log_root: Path, run_name: str) -> Path | None:
    """Return the newest run directory with a run name; None if there is none."""
    return max(log_root.glob(f"*/*_{glob.escape(run_name)}"), key=lambda path: path.name, default=None)


def read_outcome(log_root: Path, run_name: str, metric: str) -> RunOutcome:
    """Read a run."""
    run_dir = find_run_dir(log_root, run_name)
    if run_dir is None:
        return RunOutcome()
    rows, _ = read_metrics(run_dir)
    if not rows:
        return RunOutcome(run_dir=run_dir)
    reported = [row[metric] for row in rows if metric in row]
    return RunOutcome(
        run_dir=run_dir,
        value=reported[-1] if reported else None,
        iterations=rows[-1]["iteration"],
        env_steps=int(rows[-1].get("env_steps_total") or 0),
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
    """Remove the directories of starts of a run that were killed before they saved anything.

    One whose checkpoints are all damaged gets another name: its metrics, and what can be saved of it, stay.
    """
    for run_dir in log_root.glob(f"*/*_{glob.escape(run_name)}"):
        if find_valid_checkpoint(run_dir)[0] is not None or is_claimed(run_dir):
            continue
        if list_checkpoints(run_dir) or any(run_dir.glob("model_*.damaged*")):
            with contextlib.suppress(OSError):
                run_dir.rename(_free_name(run_dir))
        else:
            shutil.rmtree(run_dir, ignore_errors=True)


def _free_name(run_dir: Path) -> Path:
    """Return a name that no run has, and that no trial's run is looked for under."""
    numbers = itertools.count(1)
    return next(path for n in numbers if not (path := run_dir.with_name(f"{run_dir.name}.damaged-{n}")).exists())


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
            self._path = run_dir / METRICS_FILE
        try:
            with self._path.open("rb") as file:
                inode, done = self._file
                if inode == self._path.stat().st_ino:
                    file.seek(done)
                else:  # a resumed run has rewritten it
                    inode, done = self._path.stat().st_ino, 0
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._file = (inode, done + len(whole))
        return [row for row in MetricLines(whole.splitlines()) if "event" not in row]


State = Literal["running", "paused", "complete", "pruned", "failed"]


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """One trial of a sweep."""

    number: int
    """From 0, in the order in which they were begun."""

    state: State
    """running: not ended; if no process trains it, the next start of the sweep continues with it. paused: not ended; it
    continues if it turns out to be among the best."""

    params: dict[str, Any]
    """Value of each parameter, by its name."""

    value: float | None = None
    """The metric: at the end of a trial that is complete, averaged over its seeds; the last one of a trial that was
    pruned. None if there is none."""

    seed_values: tuple[float, ...] = ()
    """The metric at the end of each seed's run that came to its end."""

    env_steps: int = 0
    """Env steps of all its runs, whole jobs."""

    train_s: float = 0.0
    """Seconds of their iterations, without starts and saves."""

    iterations: int = 0
    """Iterations of its last run."""

    cause: str = ""
    """Why it failed; empty otherwise."""

    runs: tuple[str, ...] = ()
    """Its run directories, below the sweep's folder."""

    curve: dict[int, float] = field(default_factory=dict)
    """The metric by iteration, of its first seed."""

    def to_plain(self) -> dict[str, Any]:
        """Return all but the curve for JSON."""
        plain = asdict(self)
        del plain["curve"]
        return plain


def find_best(trials: Iterable[TrialResult], *, maximize: bool) -> TrialResult | None:
    """Return the complete trial with the best value; None if no trial is complete."""
    complete = [trial for trial in trials if trial.state == "complete" and trial.value is not None]
    return max(complete, key=lambda trial: (trial.value or 0.0) * (1 if maximize else -1), default=None)


def count_states(trials: Sequence[TrialResult]) -> dict[State, int]:
    """Count the trials by their state."""
    states: tuple[State, ...] = ("complete", "pruned", "failed", "paused", "running")
    return {state: sum(trial.state == state for trial in trials) for state in states}


SUMMARY = "sweep.json"


def write_summary(plan: SweepPlan, trials: Sequence[TrialResult]) -> Path:
    """Rewrite the file; a reader sees the old one or the new one.

    Raises:
        OSError: It cannot be written.
    """
    best, options = find_best(trials, maximize=plan.maximize), plan.options
    content = {
        "task": options.task,
        "metric": plan.metric,
        "direction": "maximize" if plan.maximize else "minimize",
        "space": {parameter.name: parameter.describe() for parameter in options.space},
        "train_flags": list(options.train_flags),
        "added_flags": list(plan.added_flags),
        "seeds_per_trial": options.seeds_per_trial,
        "sampler": options.sampler,
        "pruner": options.pruner,
        "num_trials": options.num_trials,
        "max_iterations": plan.max_iterations,
        "counts": count_states(trials),
        "env_steps": sum(trial.env_steps for trial in trials),
        "best": None if best is None else {**best.to_plain(), "command": plan.best_command(best.params)},
        "trials": [trial.to_plain() for trial in trials],
    }
    path = plan.folder / SUMMARY
    write_whole(path, json.dumps(content, indent=2) + "\n")
    return path
