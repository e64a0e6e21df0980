"""Whether the function of a rank makes progress, seen from another thread of its process."""

import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from mjtrain import heartbeat

_LONGEST_TICK_S = 1.0


class Progress:
    """Looks at one thread: at its beats, and at its stack until the first beat and while the rank is warming up.

    Args:
        thread: Identity of the thread that runs the rank's function.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._last: Any = None
        self._count = 0

    def look(self) -> dict[str, Any]:
        """Return a count that grows with progress, and what the rank is doing."""
        stack, waits = [], heartbeat.current.waiting
        frame = self._frame()
        while frame is not None:
            stack.append((id(frame), frame.f_lineno))
            waits = waits or "/torch/distributed/" in frame.f_code.co_filename
            frame = frame.f_back
        beats = heartbeat.current.beats
        now = (beats, stack if beats == 0 or heartbeat.current.warming_up else [])
        if now != self._last:
            self._last = now
            self._count += 1
        return {"progress": self._count, "phase": heartbeat.current.phase, "waits": waits}

    def show_stack(self) -> str:
        """Return the stack of the thread, as a traceback shows it."""
        return "".join(traceback.format_stack(self._frame()))

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread)


class HangWatch:
    """Notices that the function in the thread that enters this with block hangs, where no other process watches it.

    Time in which the whole process is stopped does not count. Native code that keeps Python's lock is not noticed
    before it gives it back.

    Args:
        timeout_s: The longest time without progress, in seconds.
        on_hang: Called once, in the watching thread, with the stack of the thread that hangs.
    """

    def __init__(self, timeout_s: float, on_hang: Callable[[str], None]) -> None:
        self._timeout_s = timeout_s
        self._on_hang = on_hang
        self.over = threading.Event()
        """Set when the with block has ended."""

    def __enter__(self) -> "HangWatch":
        progress = Progress(threading.get_ident())
        threading.Thread(target=self._watch, args=(progress,), name="mjtrain-hang-watch", daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.over.set()

    def _watch(self, progress: Progress) -> None:
        tick_s = min(_LONGEST_TICK_S, self._timeout_s / 8)
        last, stalled_s = -1, 0.0
        while not self.over.wait(tick_s):
            now = progress.look()
            stalled_s = 0.0 if now["progress"] != last or now["waits"] else stalled_s + tick_s
            last = now["progress"]
            if stalled_s > self._timeout_s:
                self._on_hang(progress.show_stack())
                return
