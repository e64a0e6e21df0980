"""What the trials of a sweep leave in its folder: their runs, their results, and sweep.json."""

import contextlib
import glob
import itertools
import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mjtrain.runs.checkpoint import find_valid_checkpoint, list_checkpoints
from mjtrain.runs.claim import is_claimed
from mjtrain.runs.history import lines_backwards, try_to_summarise
from mjtrain.runs.run import Rows, read_metrics
from mjtrain.runtime.event_log import METRICS_FILE
from mjtrain.runtime.files import write_whole
from mjtrain.tools.sweep.plan import SUMMARY, SweepPlan

State = Literal["complete", "pruned", "failed", "paused", "running"]


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """One trial of a sweep, with the names of `sweep.json`."""

    number: int  # from 0, in the order in which they were begun
    state: State  # one that is running has not ended; if no process trains it, the next start continues with it
    params: dict[str, Any]
    value: float | None = None  # the metric at the end, averaged over the seeds; of a pruned trial the last one
    seed_values: Sequence[float] = ()
    env_steps: int = 0  # of all its runs
    train_s: float = 0.0  # of all its runs, without starts and saves
    iterations: int = 0  # of the last run
    cause: str = ""
    runs: Sequence[str] = ()  # directories below the sweep's folder


def find_best(trials: Iterable[TrialResult], plan: SweepPlan) -> TrialResult | None:
    """Return the complete trial with the best value; None if no trial is complete."""
    complete = [trial for trial in trials if trial.state == "complete"]
    return max(complete, key=lambda trial: plan.sign * (trial.value or 0.0), default=None)


def count_states(trials: Sequence[TrialResult]) -> dict[State, int]:
    """Count the trials by their state."""
    return {state: sum(trial.state == state for trial in trials) for state in get_args(State)}


def write_summary(plan: SweepPlan, trials: Sequence[TrialResult]) -> None:
    """Rewrite sweep.json; a reader sees the old one or the new one."""
    best, options = find_best(trials, plan), plan.options
    content = {
        "task": options.task,
        "metric": plan.metric,
        "direction": plan.direction,
        "space": {parameter.name: parameter.describe() for parameter in options.parameters},
        "train_flags": options.train_flags,
        "added_flags": plan.added_flags,
        "seeds_per_trial": options.seeds_per_trial,
        "sampler": options.sampler,
        "pruner": options.pruner,
        "num_trials": options.trials,
        "max_iterations": plan.max_iterations,
        "counts": count_states(trials),
        "env_steps": sum(trial.env_steps for trial in trials),
        "best": None if best is None else {**asdict(best), "command": plan.best_command(best.params)},
        "trials": [asdict(trial) for trial in trials],
    }
    write_whole(plan.folder / SUMMARY, json.dumps(content, indent=2) + "\n")


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The files of a run with this name, however often it was started."""

    log_root: Path
    name: str

    def find_all(self) -> list[Path]:
        """Return its run directories; several after starts that were killed before they saved anything."""
        return list(self.log_root.glob(f"*/*_{glob.escape(self.name)}"))

    @property
    def folder(self) -> Path | None:
        """Its newest run directory; None if there is none."""
        return max(self.find_all(), key=lambda path: path.name, default=None)

    def read(self) -> Rows:
        """Return its metrics, a row per iteration, as far as it came."""
        folder = self.folder
        return [] if folder is None else read_metrics(folder)[0]

    def lines_after(self, seen: tuple[int, bytes] | None) -> list[tuple[int, bytes]]:
        """Return the whole lines of its metrics.jsonl after one that it returned before, each with the file's inode.

        All of them are new if a resumed run has rewritten the file.
        """
        if (folder := self.folder) is None:
            return []
        path = folder / METRICS_FILE
        try:
            inode = path.stat().st_ino
        except OSError:  # it has none yet
            return []
        lines = ((inode, line) for line in lines_backwards(path) if line.endswith(b"\n"))
        return [*itertools.takewhile(lambda line: line != seen, lines)][::-1]

    def find_end(self) -> tuple[str, str]:
        """Return its state, and what there is to say about it, as `mjtrain runs` lists them; empty without a run."""
        folder = self.folder
        summary = None if folder is None else try_to_summarise(folder)
        return ("", "") if summary is None else (summary.state, summary.detail)

    def remove_stillborn(self) -> None:
        """Remove the directories of starts that were killed before they saved anything.

        One whose checkpoints are all damaged gets another name: its metrics, and what can be saved of it, stay.
        """
        for run_dir in self.find_all():
            if find_valid_checkpoint(run_dir)[0] is not None or is_claimed(run_dir):
                continue
            if list_checkpoints(run_dir) or any(run_dir.glob("model_*.damaged*")):
                names = (run_dir.with_name(f"{run_dir.name}.damaged-{n}") for n in itertools.count(1))
                with contextlib.suppress(OSError):
                    run_dir.rename(next(path for path in names if not path.exists()))
            else:
                shutil.rmtree(run_dir, ignore_errors=True)
