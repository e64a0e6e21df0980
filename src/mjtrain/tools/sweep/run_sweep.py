"""The loop of a sweep: ask for trials, run them in their slots, tell how they ended; its display and its locks."""

import errno
import math
import os
import signal
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from mjtrain.launcher.ipc.signals import EventLoop, leave
from mjtrain.runtime.errors import OutsideError, RequestError
from mjtrain.runtime.files import lock, open_lock_file
from mjtrain.tools.sweep.plan import JOURNAL, Slot, SweepPlan
from mjtrain.tools.sweep.results import TrialResult, count_states, find_best, write_summary
from mjtrain.tools.sweep.running_trial import RunningTrial
from mjtrain.tools.sweep.space import format_value, shorten
from mjtrain.tools.sweep.study import LostTrialError, Study, Trial
from mjtrain.training.reporting.console import Display, format_duration

RESUME_HINT = "rerun the same command to resume the sweep"
LOOK_INTERVAL_S = 1.0  # time between two looks for a trial to begin, where there was none


class _SweepDisplay(Display):
    """A live table of the running trials on a terminal, a line for each start and end elsewhere."""

    def __init__(self, plan: SweepPlan) -> None:
        super().__init__(self)
        self._plan = plan
        self._results: Sequence[TrialResult] = ()
        self._running: Sequence[RunningTrial] = ()
        self._began_s: dict[int, float] = {}
        self._durations_s: list[float] = []

    def tell_start(self, trial: Trial) -> None:
        self._began_s[trial.number] = time.monotonic()
        settings = ", ".join(f"{shorten(name)} {format_value(value)}" for name, value in trial.params.items())
        self.tell(f"trial {trial.number} {'continues' if trial.was_begun else 'begins'}: {settings}")

    def set_results(self, results: Sequence[TrialResult], ended: RunningTrial | None = None) -> None:
        self._results = results
        if ended is not None and (began_s := self._began_s.pop(ended.trial.number, None)) is not None:
            self._durations_s.append(time.monotonic() - began_s)
            self.tell(f"trial {ended.trial.number} {ended.ended} | {self._describe()}")

    def update(self, running: Sequence[RunningTrial]) -> None:
        self._running = running
        self.refresh()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for heading in ("trial", "iteration", self._plan.metric, "time"):
            table.add_column(heading, no_wrap=True)
        for running in self._running:
            began_s = self._began_s.get(running.trial.number)
            elapsed = "" if began_s is None else format_duration(time.monotonic() - began_s)
            seed = f" seed {running.seed_index}" if self._plan.options.seeds_per_trial > 1 else ""
            value = "-" if running.value is None else f"{running.value:.4g}"
            iteration = f"{running.iteration}/{self._plan.max_iterations}"
            table.add_row(f"{running.trial.number}{seed}", iteration, value, elapsed)
        yield table
        yield Text(self._describe(), no_wrap=True, overflow="ellipsis")

    def _describe(self) -> str:
        counts, total = count_states(self._results), self._plan.options.trials
        ended = counts["complete"] + counts["pruned"] + counts["failed"]
        words = [f"{ended}/{total} trials"]
        words += [f"{counts[name]} {name}" for name in ("pruned", "failed", "paused") if counts[name]]
        if best := find_best(self._results, self._plan):
            words.append(f"best {best.value:.6g} of trial {best.number}")
        to_go = total - ended - counts["paused"]
        if self._durations_s and to_go > 0:
            at_a_time = max(len(self._plan.slots), counts["running"])  # other processes may run trials too
            to_go_s = statistics.fmean(self._durations_s) * math.ceil(to_go / at_a_time)
            words.append(f"about {format_duration(to_go_s)} to go")
        return ", ".join(words)


def run_sweep(plan: SweepPlan) -> list[TrialResult]:
    """Carry out a sweep, or continue with one, and return all trials. It leaves no process, also after an error."""
    with _claim_folder(plan) as claims:
        with claims.alone():
            study = Study(plan)
        plan = study.plan
        try:
            _Sweep(plan, study, claims).run()
            with claims.alone():
                trials = study.results()
                write_summary(plan, trials)
                study.draw()
        except OSError as error:
            for path in (plan.folder, plan.folder / "claims", plan.folder / JOURNAL):
                if not os.access(path, os.F_OK):
                    lost = f"{path}: is missing or cannot be reached"
                    raise OutsideError(f"{lost}; {RESUME_HINT} when it is back") from error
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise OutsideError(f"{plan.folder}: {error.strerror}; {RESUME_HINT} when there is room") from error
    return trials


@dataclass(eq=False, kw_only=True)
class Claim:
    """Names that no other process has, with open files. A process that inherits one keeps the claim to it alive."""

    shared: bool
    descriptors: dict[str, int] = field(default_factory=dict)

    def is_held(self) -> bool:
        """Tell whether no other process has any of it, and lock again what a restarted server of NFS has lost."""
        try:
            return all(lock(descriptor, shared=self.shared) for descriptor in self.descriptors.values())
        except OSError:  # a file system without locks loses none
            return True

    def release(self) -> None:
        """Give it back; what child processes have inherited stays theirs until they end."""
        while self.descriptors:
            os.close(self.descriptors.popitem()[1])


class Claims:
    """The claims to what a folder's processes share: locks that NFS and others pass on to all hosts."""

    def __init__(self, folder: Path, *, needs_locks: bool) -> None:
        """Make the folder; without locks in its file system, each claim is an OSError, or granted."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._needs_locks = needs_locks

    def take(self, *names: str, shared: bool = False) -> Claim | None:
        """Claim all of these; None if another process has one of them."""
        claim = Claim(shared=shared)
        with ExitStack() as undo:
            undo.callback(claim.release)
            for name in names:
                if not self._lock(claim, name):
                    return None
            undo.pop_all()
        return claim

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other process is in such a with block of this folder."""
        claim = Claim(shared=False)
        try:
            self._lock(claim, "study", wait=True)
            yield
        finally:
            claim.release()

    def _lock(self, claim: Claim, name: str, *, wait: bool = False) -> bool:
        claim.descriptors[name] = open_lock_file(self._folder / f"{name}.lock")
        try:
            return lock(claim.descriptors[name], shared=claim.shared, wait=wait)
        except OSError:
            if self._needs_locks:
                raise
        return True


@contextmanager
def _claim_folder(plan: SweepPlan) -> Iterator[Claims]:
    """Make the folder of a sweep; during a with block only processes work there that share it, if this one does."""
    flag, shared = f"--sweep-dir {plan.folder}", plan.options.shared
    try:
        for folder in (plan.log_root, plan.folder / "output"):
            folder.mkdir(parents=True, exist_ok=True)
        claims = Claims(plan.folder / "claims", needs_locks=shared)
        os.close(open_lock_file(plan.folder / "claims" / "sweep.lock"))  # so a failure below can only come from locking
    except OSError as error:
        raise RequestError(f"{flag}: cannot be written ({error.strerror})") from error
    try:
        claim = claims.take("sweep", shared=shared)
    except OSError as error:
        raise RequestError(f"--shared: the file system of {plan.folder} has no locks ({error.strerror})") from error
    if claim is None:
        hint = "; it was started without --shared" if shared else "; with --shared processes may share one sweep"
        raise RequestError(f"{flag}: another sweep is at work there{hint}")
    try:
        yield claims
    finally:
        claim.release()


class _Sweep:
    """The trials that run, and those to come."""

    def __init__(self, plan: SweepPlan, study: Study, claims: Claims) -> None:
        self._plan, self._study, self._claims = plan, study, claims
        self._running: dict[RunningTrial, ExitStack] = {}  # each with what gives back the claims to its slot and itself
        self._waits = False  # whether there may be a trial to begin or to continue with soon, but not yet
        self._next_look_s = 0.0
        self._stop_signal: int | None = None
        self._loop = EventLoop(self._on_signal)
        self._display = _SweepDisplay(plan)
        self._results: list[TrialResult] = []

    def run(self) -> None:
        """Run until all trials have ended, or a signal has."""
        with ExitStack() as stack:
            stack.enter_context(self._loop)
            stack.enter_context(self._display)
            stack.callback(self._close)
            self._report()
            while True:
                if self._stop_signal is None and time.monotonic() >= self._next_look_s:
                    self._fill_slots()
                if not self._running and (self._stop_signal is not None or not self._waits):
                    break
                self._loop.turn()
                for trial in list(self._running):
                    self._follow(trial)
                self._display.update(list(self._running))
        if self._stop_signal is not None:
            leave(self._stop_signal)

    def _fill_slots(self) -> None:
        """Begin trials until no slot is free, or none is to be begun now."""
        self._waits = False
        while place := self._take_slot():
            slot, slot_claim = place
            with ExitStack() as claims:
                claims.callback(slot_claim.release)
                trial, claim = self._take_trial()
                if trial is None or claim is None:
                    self._next_look_s = time.monotonic() + LOOK_INTERVAL_S
                    return
                claims.callback(claim.release)
                trial.is_ours, trial.alone = claim.is_held, self._claims.alone
                self._display.tell_start(trial)
                inherited = claim.descriptors[_processes_of(trial.number)]
                try:
                    running = RunningTrial(self._plan, trial, slot, self._loop, inherited)
                except LostTrialError as error:
                    self._display.tell(str(error))
                    continue
                self._running[running] = claims.pop_all()
            self._follow(running)  # one that was done already ends at once

    def _take_slot(self) -> tuple[Slot, Claim] | None:
        used = [trial.slot for trial in self._running]
        for slot in self._plan.slots:
            if slot not in used and (claim := self._claims.take(*_resources_of(slot))):
                return slot, claim
        if not self._running:  # another process of this host has all of them
            self._waits = len(self._results) < self._plan.options.trials or self._has_paused
            self._next_look_s = time.monotonic() + LOOK_INTERVAL_S
        return None

    def _take_trial(self) -> tuple[Trial, Claim] | tuple[None, None]:
        """Return a trial that was begun and that nobody continues with, or a new one; None if there is none."""
        with self._claims.alone():
            own = {running.trial.number for running in self._running}
            for number in self._study.hopeless():
                if number not in own and (claim := self._claims.take(f"trial_{number}")):
                    self._study.prune(number)
                    claim.release()
            for number in self._study.ready():
                if number in own or (nobody := self._claims.take(f"trial_{number}")) is None:
                    continue
                nobody.release()
                if claim := self._claims.take(f"trial_{number}", _processes_of(number)):
                    return self._study.take_up(number), claim
                self._waits = True  # its processes are being ended
            self._results = self._study.results()
            if len(self._results) >= self._plan.options.trials:
                self._waits |= self._has_paused  # others may promote it, or their runs are being ended
                return None, None
            trial = self._study.ask()
            claim = self._claims.take(f"trial_{trial.number}", _processes_of(trial.number))
            assert claim is not None
            return trial, claim

    @property
    def _has_paused(self) -> bool:
        return any(result.state == "paused" for result in self._results)

    def _follow(self, trial: RunningTrial) -> None:
        had_ended = bool(trial.ended)
        try:
            trial.follow()
        except LostTrialError as error:
            self._display.tell(str(error))
            trial.close()
        if trial.is_over:
            self._running.pop(trial).close()
        if (trial.is_over and trial.ended) or (trial.ended and not had_ended):
            self._report(trial)

    def _report(self, ended: RunningTrial | None = None) -> None:
        """Show and write how far the sweep is."""
        with self._claims.alone():  # who writes last knows most
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
            f"once); {RESUME_HINT}"
        )
        for trial in self._running:
            trial.stop()

    def _close(self) -> None:
        for trial, claims in self._running.items():
            trial.close()
            claims.close()
        self._running.clear()


def _processes_of(number: int) -> str:
    return f"trial_{number}_processes"


def _resources_of(slot: Slot) -> list[str]:
    """Name the cores and GPUs of a slot, for all hosts."""
    names = [f"core_{core}" for core in slot.cores] + [f"gpu_{gpu.replace('/', '_')}" for gpu in slot.gpus]
    return [f"{socket.gethostname()}_{name}" for name in names]
