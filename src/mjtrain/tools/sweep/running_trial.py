"""One trial while it runs: its runs of train, one seed after the other, in its slot."""

import math
import time
from pathlib import Path
from typing import Any

from mjtrain.launcher.ipc.event_loop import EventLoop
from mjtrain.tools.sweep.plan import SweepPlan
from mjtrain.tools.sweep.run_files import (
    MetricFollower,
    RunOutcome,
    is_done,
    read_cause,
    read_outcome,
    remove_stillborn,
)
from mjtrain.tools.sweep.slots import Slot
from mjtrain.tools.sweep.study import Trial
from mjtrain.tools.sweep.trial_process import TrialProcess

STOP_SLACK_S = 10.0
"""How much longer than train itself a sweep waits for the end of a run that it has stopped, in seconds."""

FULL_DISK = ("No space left on device", "Disk quota exceeded")
"""Words of the kernel in the cause of a failure that no settings are to blame for."""


REPORTS = 100
"""About how often a run's metric is told to the study; each time is a write to the disk."""


def name_run(number: int, seed_index: int) -> str:
    """Name the run of a trial with one of its seeds."""
    return f"trial_{number:04d}_seed_{seed_index}"


class DiskFullError(RuntimeError):
    """A run failed because the disk is full; the trial has not ended."""


class RunningTrial:
    """A trial that has a slot, and how it ends."""

    def __init__(self, plan: SweepPlan, trial: Trial, slot: Slot, loop: EventLoop, inherited: int) -> None:
        """Start, or resume, the first run of the trial that has not come to its end."""
        self.trial = trial
        self.slot = slot
        self.ended: str = ""
        """How it ended, or that it is paused, in a line; empty as long as it continues."""
        self.iteration = 0
        """Iterations of its present run."""
        self.value: float | None = None
        """The metric where the present run reported it last."""
        self.seed_index = 0
        """Which of its seeds runs."""
        self._plan = plan
        self._loop = loop
        self._inherited = inherited
        self._process: TrialProcess | None = None
        self._interrupted = False
        self._is_paused = False
        while self.seed_index < plan.options.seeds_per_trial and is_done(plan.log_root, self._run_name()):
            self.seed_index += 1
        if self.seed_index == plan.options.seeds_per_trial:  # all is done, and only the study does not know it
            self._finish()
        else:
            self._start()

    @property
    def is_over(self) -> bool:
        """Whether it has no process any more."""
        return self._process is None

    def follow(self) -> None:
        """Take in what its run has written, judge it, and continue with the next seed or end it."""
        process = self._process
        if process is None:
            return
        process.enforce()
        has_ended = process.has_ended  # before the metrics are read, as the last ones are written before that
        self._read_metrics()
        if not (self.ended or self._interrupted or has_ended) and time.monotonic() > self._deadline_s:
            self._fail(self._describe_hang())
            process.close()
        if has_ended or process.has_ended:
            self._end_run(process)

    def stop(self) -> None:
        """Ask its run to save and end; the trial continues when the sweep is started again."""
        self._interrupted = True
        if self._process is not None:
            self._process.stop(self._grace_s())

    def close(self) -> None:
        """End all of its processes now."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _start(self) -> None:
        name, plan = self._run_name(), self._plan
        remove_stillborn(plan.log_root, name)
        arguments = plan.train_arguments(self.trial.params, self.seed_index, name)
        self._follower = MetricFollower(plan.log_root, name)
        self._iterations_before = self._outcome(self.seed_index).iterations  # in earlier starts
        self._is_starting = True
        self._deadline_s = time.monotonic() + plan.start_timeout_s
        self._process = TrialProcess(arguments, self.slot, plan.folder / "output" / name, self._loop, self._inherited)

    def _run_name(self, seed_index: int | None = None) -> str:
        return name_run(self.trial.number, self.seed_index if seed_index is None else seed_index)

    def _expect_iteration_after(self, iteration: int) -> None:
        """Allow time for the next iteration; a run that repeats those of earlier starts keeps its time to start."""
        deadline_s = time.monotonic() + self._plan.options.stall_timeout_s
        self._is_starting = self._is_starting and iteration <= self._iterations_before
        self._deadline_s = max(self._deadline_s, deadline_s) if self._is_starting else deadline_s

    def _describe_hang(self) -> str:
        if self._is_starting:
            return f"no new iteration within {self._plan.start_timeout_s:g} s of its start (--start-timeout-s)"
        return f"no iteration for {self._plan.options.stall_timeout_s:g} s (--stall-timeout-s)"

    def _grace_s(self) -> float:
        return self._plan.stop_grace_s + STOP_SLACK_S

    def _read_metrics(self) -> None:
        """Hand what is new to the study, which may end the trial."""
        rows = self._follower.read()
        if not rows:
            return
        self.iteration = rows[-1]["iteration"]
        self._expect_iteration_after(self.iteration)
        reported = [(row["iteration"], row[self._plan.metric]) for row in rows if _is_number(row, self._plan.metric)]
        if not reported:
            return
        self.value = reported[-1][1]
        if self.ended or self._interrupted or self.seed_index > 0:  # only first seeds are compared with each other
            return
        for iteration, value in reported:
            if iteration < self.trial.last_reported + max(1, self._plan.max_iterations // REPORTS):
                continue  # too soon, or known: a resumed run repeats iterations
            self.trial.report(iteration, value)
            if iteration >= self._plan.max_iterations:
                return
            if self.trial.should_prune():
                self.trial.prune(self._record())
                self._stop_early("pruned", iteration, value)
                return
            if self.trial.should_pause():
                self._is_paused = True
                self._stop_early("paused", iteration, value)
                return

    def _stop_early(self, how: str, iteration: int, value: float) -> None:
        assert self._process is not None
        self.ended = f"{how} after iteration {iteration}: {self._plan.metric} {value:.6g}"
        self._process.stop(self._grace_s())

    def _end_run(self, process: TrialProcess) -> None:
        process.close()
        self._process = None
        if self._is_paused:
            self.trial.pause(self._record())
        if self.ended:
            return
        outcome = self._outcome(self.seed_index)
        if not process.has_succeeded:
            if not self._interrupted:
                self._explain(process, outcome)
        elif outcome.value is None:
            self._fail(f"{self._plan.metric} is not a finite number at the end (iteration {outcome.iterations})")
        elif self.seed_index + 1 == self._plan.options.seeds_per_trial:
            self._finish()
        else:
            self.seed_index += 1
            if not self._interrupted:
                self.iteration, self.value = 0, None
                self._start()

    def _explain(self, process: TrialProcess, outcome: RunOutcome) -> None:
        """Fail for the reason that the run has recorded or printed, unless it is the disk's fault."""
        cause = read_cause(outcome.run_dir) or process.describe_end()
        if any(words in cause for words in FULL_DISK):
            raise DiskFullError(f"trial {self.trial.number}: {cause}")
        self._fail(cause)

    def _fail(self, cause: str) -> None:
        self.trial.fail(cause, self._record())
        self.ended = f"failed: {cause}"

    def _finish(self) -> None:
        values = [self._outcome(index).value for index in range(self._plan.options.seeds_per_trial)]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            self._fail(f"{self._plan.metric} is not a finite number at the end of a run")
            return
        value = math.fsum(known) / len(known)
        self.trial.complete(value, {**self._record(), "seed_values": known})
        self.ended = f"complete: {self._plan.metric} {value:.6g}"

    def _record(self) -> dict[str, Any]:
        """Return what the study keeps of its runs."""
        last = min(self.seed_index, self._plan.options.seeds_per_trial - 1)
        outcomes = [self._outcome(index) for index in range(last + 1)]
        return {
            "env_steps": sum(outcome.env_steps for outcome in outcomes),
            "train_s": round(math.fsum(outcome.train_s for outcome in outcomes), 3),
            "iterations": outcomes[-1].iterations,
            "runs": [_below(outcome.run_dir, self._plan.folder) for outcome in outcomes if outcome.run_dir is not None],
        }

    def _outcome(self, seed_index: int) -> RunOutcome:
        return read_outcome(self._plan.log_root, self._run_name(seed_index), self._plan.metric)


def _is_number(row: dict[str, Any], metric: str) -> bool:
    return isinstance(row.get(metric), int | float)


def _below(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder))
