"""Watches, while a job runs without the hosts that it has lost, whether some of them are there again."""

import threading
from collections.abc import Callable
from types import TracebackType

Look = Callable[[Callable[[], bool]], bool]
"""Takes what tells whether the watch is over; looks once, and tells whether hosts are there again."""


class ReturnWatch:
    """Looks again and again, in a thread of its own, until it finds hosts. Use as a context manager."""

    def __init__(self, look: Look, interval_s: float) -> None:
        """Prepare to watch.

        Args:
            look: Looks once.
            interval_s: Time between two looks, in seconds.
        """
        self._look = look
        self._interval_s = interval_s
        self._found = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="mjtrain-return", daemon=True)

    def found(self) -> bool:
        """Tell whether hosts are there again; they may be lost once more."""
        return self._found.is_set()

    def __enter__(self) -> "ReturnWatch":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the watch; no look is in progress any more."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._interval_s):
            if self._look(self._over.is_set):
                self._found.set()
