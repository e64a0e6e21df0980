"""What runs between two frames of a viewer: the env steps that are due, and the actions that visitors ask for."""

import queue
import time
from collections.abc import Callable

import numpy as np

_LONGEST_TICK_S = 0.05


class Clock:
    """Converts elapsed time to env steps."""

    def __init__(self, step_dt: float) -> None:
        self.step_dt = step_dt
        self._due_s = 0.0

    def run(self, elapsed_s: float, step: Callable[[], None]) -> bool:
        """Do the steps that are due and return whether there were any; steps that take too long slow time down."""
        if not np.isfinite(elapsed_s):
            return False
        self._due_s += elapsed_s
        deadline = time.monotonic() + _LONGEST_TICK_S
        stepped = False
        while self._due_s >= self.step_dt:
            step()
            stepped = True
            self._due_s -= self.step_dt
            if time.monotonic() > deadline:
                self._due_s = 0.0
        return stepped


class Actions:
    """A queue of actions that other threads want to run between two steps."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def post(self, action: Callable[[], None]) -> None:
        """Queue an action; any thread may call this."""
        self._queue.put(action)

    def run(self) -> bool:
        """Run all queued actions; return whether there were any."""
        acted = False
        while not self._queue.empty():
            self._queue.get()()
            acted = True
        return acted
