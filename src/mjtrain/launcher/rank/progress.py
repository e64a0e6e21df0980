"""Whether the function of a rank makes progress, seen from another thread of its process."""

import select
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from mjtrain import heartbeat
from mjtrain.launcher.rank.activity import Activity
from mjtrain.launcher.rank.phase_limits import PhaseLimits, explain_limit

TICK_S = 1.0
"""Longest time between two looks."""

COMPILING = 12
"""How many times the ceiling a rank that is warming up may compute at one place of its stack, as compilers do."""

_DEBUGGERS = ("/bdb.py", "/pydevd.py")
"""Files of Python's debuggers. While one of them has the thread, somebody looks at it."""


class Progress:
    """Looks at one thread: at its beats, and at its stack until the first beat and while the rank is warming up.

    While the rank is warming up, it also makes progress when its process computes, for `COMPILING` times the ceiling.

    Args:
        thread: The thread that runs the rank's function.
        limits: How long it may go without progress.
    """

    def __init__(self, thread: threading.Thread, limits: PhaseLimits) -> None:
        assert thread.ident is not None
        assert thread.native_id is not None
        self._thread = thread.ident
        self._limits = limits
        self._activity = Activity(thread.native_id)
        self._last: Any = None
        self._count = 0
        self._looked_s = time.monotonic()
        self._stalled_s = self._idle_s = 0.0

    def look(self) -> dict[str, Any]:
        """Return a count that grows with progress, what the rank is doing, and whether it hangs by what it has shown.

        That is a line about the limit, or no words.
        """
        beat, (stack, waits) = heartbeat.current, self._read_stack()
        now = (beat.beats, stack if beat.beats == 0 or beat.warming_up else [])
        stalled = now == self._last and not waits and not _is_output_held()
        busy = self._activity.was_busy(stalled=stalled)
        before_s, self._looked_s = self._looked_s, time.monotonic()
        if not stalled:
            self._count += now != self._last
            self._last, self._stalled_s, self._idle_s = now, 0.0, 0.0
        else:
            passed_s = min(self._looked_s - before_s, 2 * TICK_S)  # this process may have been stopped meanwhile
            self._stalled_s += passed_s
            self._idle_s = max(0.0, self._idle_s - 2 * passed_s) if busy else self._idle_s + passed_s
            self._count += beat.warming_up and busy and self._stalled_s < COMPILING * self._limits.ceiling_s
        return {"progress": self._count, "phase": beat.phase, "waits": waits, "overdue": self._find_overdue(beat)}

    def _find_overdue(self, beat: heartbeat.Heartbeat) -> str:
        for idle, stalled_s in ((True, self._idle_s), (False, self._stalled_s)):
            limit_s = self._limits.find(beat.phase, beat.durations, idle=idle)
            if limit_s is not None and stalled_s > limit_s:
                phase_s = time.monotonic() - beat.began_s
                return explain_limit(beat.phase, beat.durations, limit_s=limit_s, phase_s=phase_s)
        return ""

    def _read_stack(self) -> tuple[list[tuple[int, int]], bool]:
        """Return the places of the thread's stack, and whether it waits for other ranks or for a person."""
        places, waits = [], heartbeat.current.waiting
        frame = self._frame()
        while frame is not None:
            places.append((id(frame), frame.f_lineno))
            file = frame.f_code.co_filename
            waits = waits or "/torch/distributed/" in file or file.endswith(_DEBUGGERS)
            frame = frame.f_back
        return places, waits

    def show_stack(self) -> str:
        """Return the stack of the thread, as a traceback shows it."""
        return "".join(traceback.format_stack(self._frame()))

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread)


def _is_output_held() -> bool:
    """Tell whether standard output or error takes nothing more, as where somebody has stopped the terminal."""
    try:
        return len(select.select([], [1, 2], [], 0)[1]) < 2
    except (OSError, ValueError):  # one of them is closed
        return False


class HangWatch:
    """Notices that the function in the thread that enters this with block hangs, where no other process watches it.

    Time in which the whole process is stopped does not count. Native code that keeps Python's lock is not noticed
    before it gives it back.

    Args:
        limits: How long it may go without progress.
        on_hang: Called once, in the watching thread, with the reason and the stack of the thread that hangs.
    """

    def __init__(self, limits: PhaseLimits, on_hang: Callable[[str, str], None]) -> None:
        self._limits = limits
        self._on_hang = on_hang
        self.over = threading.Event()
        """Set when the with block has ended."""

    def __enter__(self) -> "HangWatch":
        progress = Progress(threading.current_thread(), self._limits)
        threading.Thread(target=self._watch, args=(progress,), name="mjtrain-hang-watch", daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.over.set()

    def _watch(self, progress: Progress) -> None:
        timeout_s = self._limits.ceiling_s
        tick_s = min(TICK_S, timeout_s / 8)
        last, stalled_s = -1, 0.0
        while not self.over.wait(tick_s):
            now = progress.look()
            stalled_s = 0.0 if now["progress"] != last or now["waits"] else stalled_s + tick_s
            last = now["progress"]
            reason = now["overdue"]
            if stalled_s > timeout_s:
                reason = f"no progress for {timeout_s:g} s (--heartbeat-timeout-s)"
            if reason:
                self._on_hang(reason, progress.show_stack())
                return
