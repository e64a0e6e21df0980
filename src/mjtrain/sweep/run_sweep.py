"""The loop of a sweep: ask for trials, run them in their slots, tell how they ended."""

import errno
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjtrain.errors import RequestError
from mjtrain.launcher.ipc.event_loop import EventLoop
from mjtrain.launcher.ipc.signals import leave
from mjtrain.sweep.display import SweepDisplay
from mjtrain.sweep.draw import draw_sweep
from mjtrain.sweep.plan import SweepPlan
from mjtrain.sweep.run_files import wait_until_free
from mjtrain.sweep.running_trial import DiskFullError, RunningTrial, name_run
from mjtrain.sweep.slots import Slot
from mjtrain.sweep.study import Study, Trial, read_identity
from mjtrain.sweep.summary import SUMMARY, write_summary
from mjtrain.sweep.trial_result import State, TrialResult, count_states, find_best

JOURNAL = "study.jsonl"
PICTURE = "sweep.png"

GOES_ON = "the same command goes on with the sweep"


class SweepStoppedError(RuntimeError):
    """The sweep cannot go on now; what has ended is recorded."""


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """What came of a sweep."""

    trials: tuple[TrialResult, ...]
    """All trials, in the order in which they were begun."""

    best: TrialResult | None
    """The complete trial with the best value; None if no trial is complete."""

    files: tuple[Path, ...]
    """What says more: tables and plots."""

    @property
    def counts(self) -> dict[State, int]:
        """How many trials ended in which way."""
        return count_states(self.trials)


def run_sweep(plan: SweepPlan) -> SweepResult:
    """Carry out a sweep, or go on with one; when this returns or raises, no process of it is left.

    Raises:
        RequestError: The folder cannot be written, holds another sweep, or another process is at work there.
        SweepStoppedError: The disk is full.
        KeyboardInterrupt: It was stopped by SIGINT; its trials have saved.
        SystemExit: It was stopped by another signal; its trials have saved.
    """
    with claim_folder(plan) as folder:
        study = _open_study(plan)
        sweep = _Sweep(plan, study)
        try:
            sweep.run()
        except DiskFullError as error:
            raise SweepStoppedError(f"{error}; {GOES_ON} when there is room on the disk of {folder}") from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise SweepStoppedError(f"{folder}: {error.strerror}; {GOES_ON} when there is room") from error
        trials = study.results()
        picture = draw_sweep(trials, study.importances(), plan, folder / PICTURE)
        best = find_best(trials, maximize=plan.maximize)
    return SweepResult(trials=tuple(trials), best=best, files=(folder / SUMMARY, *([picture] if picture else [])))


@contextmanager
def claim_folder(plan: SweepPlan) -> Iterator[Path]:
    """Make the folder of a sweep, and be the only process that works there during a with block.

    Raises:
        RequestError: It cannot be written, it holds another sweep, or another process works there.
    """
    _check_identity(plan)
    flag = f"--sweep-dir {plan.folder}"
    try:
        for folder in (plan.log_root, plan.folder / "output"):
            folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(plan.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RequestError(f"{flag}: cannot be written ({error.strerror})") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RequestError(f"{flag}: another sweep is at work there") from error
    else:
        _check_identity(plan)  # another sweep may have begun and ended meanwhile
        yield plan.folder
    finally:
        os.close(descriptor)


def _check_identity(plan: SweepPlan) -> None:
    """Refuse to go on with a study of something else."""
    recorded, now = read_identity(plan.folder / JOURNAL), plan.identity()
    if recorded is None:
        return
    for name, value in now.items():
        if recorded.get(name) != value:
            before, after = _write(recorded.get(name)), _write(value)
            raise RequestError(
                f"--sweep-dir {plan.folder}: holds a sweep with {name} {before}, not {after}; give another --sweep-dir"
            )


def _write(value: Any) -> str:
    return (" ".join(value) or "(none)") if isinstance(value, list) else str(value)


def _open_study(plan: SweepPlan) -> Study:
    options = plan.options
    study = Study(plan.folder / JOURNAL, plan.identity(), maximize=plan.maximize)
    study.configure(
        options.space,
        sampler=options.sampler,
        pruner=options.pruner,
        seed=plan.seed,
        num_trials=options.num_trials,
        max_iterations=plan.max_iterations,
    )
    return study


class _Sweep:
    """The trials that run, and those to come."""

    def __init__(self, plan: SweepPlan, study: Study) -> None:
        self._plan = plan
        self._study = study
        self._running: list[RunningTrial] = []
        self._unfinished: list[Trial] = []
        self._stop_signal: int | None = None
        self._loop = EventLoop(self._on_signal)
        self._display = SweepDisplay(plan)
        self._results: list[TrialResult] = []

    def run(self) -> None:
        """Run until all trials have ended, or a signal has."""
        with ExitStack() as stack:
            stack.enter_context(self._loop)
            stack.enter_context(self._display)
            stack.callback(self._close)
            self._unfinished = self._study.unfinished()
            seeds = range(self._plan.options.seeds_per_trial)
            names = [name_run(trial.number, seed_index) for trial in self._unfinished for seed_index in seeds]
            wait_until_free(self._plan.log_root, names)
            self._report()
            while True:
                if self._stop_signal is None:
                    self._fill_slots()
                if not self._running:
                    break
                self._loop.turn()
                for trial in list(self._running):
                    self._follow(trial)
                self._display.update(self._running)
        if self._stop_signal is not None:
            leave(self._stop_signal)

    def _fill_slots(self) -> None:
        while slot := self._find_free_slot():
            trial = self._next_trial()
            if trial is None:
                return
            self._display.tell_start(trial)
            running = RunningTrial(self._plan, trial, slot, self._loop)
            self._running.append(running)
            self._follow(running)  # one that was done already ends at once

    def _find_free_slot(self) -> Slot | None:
        used = [trial.slot for trial in self._running]
        return next((slot for slot in self._plan.slots if slot not in used), None)

    def _next_trial(self) -> Trial | None:
        if self._unfinished:
            return self._unfinished.pop(0)
        if len(self._results) >= self._plan.options.num_trials:
            return None
        trial = self._study.ask()
        self._results = self._study.results()
        return trial

    def _follow(self, trial: RunningTrial) -> None:
        had_ended = bool(trial.ended)
        trial.follow()
        if trial.is_over:
            self._running.remove(trial)
        if (trial.is_over and trial.ended) or (trial.ended and not had_ended):
            self._report(trial)

    def _report(self, ended: RunningTrial | None = None) -> None:
        """Show and write how far the sweep is."""
        self._results = self._study.results()
        write_summary(self._plan, self._results)
        self._display.set_results(self._results, ended)

    def _on_signal(self, signum: int) -> None:
        """The first signal lets all runs save; a second one ends them at once."""
        if self._stop_signal is not None:
            self._close()
            return
        self._stop_signal = signum
        self._display.tell(
            f"{signal.Signals(signum).name}: {len(self._running)} running trials save and end (again to end them at "
            f"once); {GOES_ON}"
        )
        for trial in self._running:
            trial.stop()

    def _close(self) -> None:
        for trial in self._running:
            trial.close()
        self._running.clear()
