"""Heartbeats and the request to stop: what a function on a rank and its launcher tell each other.

There is one heartbeat per process, as there is one rank per process. Without a launcher, the beats are not counted.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(kw_only=True)
class Durations:
    """How long a phase has taken so far, each time that it came. Times are in seconds."""

    count: int = 0
    total_s: float = 0.0
    slowest_s: float = 0.0

    def add(self, duration_s: float) -> None:
        """Add one time."""
        self.count += 1
        self.total_s += duration_s
        self.slowest_s = max(self.slowest_s, duration_s)


class Heartbeat:
    """Progress of this process, as reported to the launcher."""

    def __init__(self) -> None:
        self.beats = 0
        """Number of beats so far; 0 for a function that never gives one."""
        self.phase = "start"
        """What the rank is doing: start, then run, or in a training build, rollout, update,
        report, evaluation or save."""
        self.iteration: int | None = None
        """The iteration that the phase belongs to, from 1; None in a job without iterations."""
        self.began_s = time.monotonic()
        """When the phase began."""
        self.durations: dict[str, Durations] = {}
        """How long the phases of iterations have taken, without those that were warming up."""
        self.warming_up = False
        """Whether a change of the Python stack counts as progress beside the beats, see `beat`."""
        self.waiting = False
        """Whether the rank waits for other ranks."""
        self.stoppable = False
        """Whether the function asks `stop_requested`, so that a signal need not interrupt it."""
        self.stop_signal: int | None = None
        """The signal that asks the job to stop."""
        self.stop_agreed = False
        """Whether the ranks have agreed to stop, whichever of them was asked."""
        self.pause_requested = False
        """Whether the launcher asks to pause after the next checkpoint."""
        self.paused = False
        """Whether the function ends here to be started again from what it has saved, because the launcher asked."""
        self.injected: list[str] = []
        """The faults that have happened on purpose, see `mjtrain.launcher.faults`."""

    def count(self) -> None:
        """Make progress."""
        self.beats += 1

    def begin(self, phase: str, *, warming_up: bool = False, iteration: int | None = None) -> None:
        """Begin a phase. Arguments as for `beat`; `iteration` defaults to the previous phase's."""
        now_s = time.monotonic()
        if self.iteration is not None and not self.warming_up:
            self.durations.setdefault(self.phase, Durations()).add(now_s - self.began_s)
        self.phase, self.warming_up, self.began_s = phase, warming_up, now_s
        if iteration is not None:
            self.iteration = iteration


current = Heartbeat()


def beat(phase: str | None = None, *, warming_up: bool = False, iteration: int | None = None) -> None:
    """Say that this rank makes progress; a function that does so once must do so within --heartbeat-timeout-s.

    Args:
        phase: What begins now, for messages; None for more of the same.
        warming_up: With a phase, whether code is loaded or compiled in it, which may take minutes without a beat. Until
            the next phase begins, the rank then also makes progress when its Python stack changes.
        iteration: With a phase, the iteration that it belongs to, from 1; None for that of the phase before, if any.
            Iterations are taken to be alike: how long a phase may go without a beat is learned from those before, see
            --heartbeat-floor-s.
    """
    if phase is None:
        current.count()
    else:
        current.beats += 1
        current.begin(phase, warming_up=warming_up, iteration=iteration)


def stop_requested() -> bool:
    """Tell whether the user asked for a stop (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU).

    A function that asks is expected to save and return soon; one that never asks is interrupted by the first signal.
    Ranks may learn of it at different moments: agree on an answer before you act on it.
    """
    current.stoppable = True
    return current.stop_signal is not None


@contextmanager
def waiting() -> Iterator[None]:
    """Say that this rank waits for other ranks during a with block: if it hangs there, another rank is to blame."""
    before, current.waiting = current.waiting, True
    try:
        yield
    finally:
        current.waiting = before
