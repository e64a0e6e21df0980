"""The loop in which a launcher waits: for input on its connections, and for signals that ask it to stop."""

import contextlib
import os
import selectors
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mjtrain.launcher.ipc.signals import StopSignals, wakeup_pipe

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

_TURN_S = 0.2


class EventLoop:
    """Calls back when a file becomes readable or a stop signal has arrived; use as a context manager.

    Every callback runs in `turn`, in the thread that calls it, and after the one before has returned. A signal
    therefore never interrupts a callback that holds a lock.
    """

    def __init__(self, on_stop_signal: Callable[[int], None]) -> None:
        self._on_stop_signal = on_stop_signal
        self._signals: deque[int] = deque()
        self._selector = selectors.DefaultSelector()
        self._stack = contextlib.ExitStack()
        self._turn_ended_s = 0.0

    def __enter__(self) -> "EventLoop":
        with contextlib.ExitStack() as stack:
            stack.callback(self._selector.close)
            wakeup = stack.enter_context(wakeup_pipe())
            stack.enter_context(StopSignals(self._signals.append))
            self.watch(wakeup, lambda: os.read(wakeup, 4096))
            self._stack = stack.pop_all()
        self._turn_ended_s = time.monotonic()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def watch(self, file: "FileDescriptorLike", callback: Callable[[], Any]) -> None:
        """Call back each time a file is readable."""
        self._selector.register(file, selectors.EVENT_READ, callback)

    def unwatch(self, file: "FileDescriptorLike") -> None:
        """Stop watching a file, if it is watched; do this before it is closed."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(file)

    def turn(self) -> float:
        """Wait for a moment at most, and handle all that has arrived.

        Returns:
            For how long this process did not run, in seconds, if it was stopped since the last turn; 0 otherwise.
        """
        for key, _ in self._selector.select(_TURN_S):
            if key.fd in self._selector.get_map():  # an earlier callback of this turn may have closed it
                key.data()
        while self._signals:
            self._on_stop_signal(self._signals.popleft())
        before_s, self._turn_ended_s = self._turn_ended_s, time.monotonic()
        passed_s = self._turn_ended_s - before_s
        return passed_s if passed_s > 10 * _TURN_S else 0.0
