"""Heartbeats and the request to stop: what a function on a rank and its launcher tell each other.

There is one heartbeat per process, as there is one rank per process. Without a launcher, the beats are not counted.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class Heartbeat:
    """What this process has to say about itself."""

    def __init__(self) -> None:
        self.beats = 0
        """Number of beats so far; 0 for a function that never gives one."""
        self.phase = "start"
        """What the rank is doing: start, then run, or in a training build, rollout, update,
        report, evaluation or save."""
        self.iteration: int | None = None
        """The iteration that the phase belongs to, from 1; None where there are no iterations."""
        self.warming_up = False
        """Whether a change of the Python stack counts as progress beside the beats, see `beat`."""
        self.waiting = False
        """Whether the rank waits for other ranks."""
        self.stoppable = False
        """Whether the function asks `stop_requested`, so that a signal need not interrupt it."""
        self.stop_signal: int | None = None
        """The signal that asks the job to stop."""
        self.injected: list[str] = []
        """The faults that have happened on purpose, see `fault_injection`."""

    def count(self) -> None:
        """Make progress."""
        self.beats += 1

    def begin(self, phase: str, *, warming_up: bool = False, iteration: int | None = None) -> None:
        """Begin a phase; arguments as of `beat`, but that no iteration is that of the phase before."""
        self.phase, self.warming_up = phase, warming_up
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
    """
    if phase is None:
        current.count()
    else:
        current.beats += 1
        current.begin(phase, warming_up=warming_up, iteration=iteration)


def stop_requested() -> bool:
    """Tell whether the user asked for a stop (SIGINT, SIGTERM, SIGHUP, SIGUSR1).

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
