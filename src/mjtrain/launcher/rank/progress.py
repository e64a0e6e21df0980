"""Whether the function of a rank makes progress, seen from another thread of its process, and how long it may take."""

import contextlib
import gc
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from pathlib import Path
from types import FrameType
from typing import Any

from mjtrain.runtime import heartbeat
from mjtrain.runtime.heartbeat import Durations
from mjtrain.runtime.processes import list_descendants, read_stat

_BUSY = 0.1
"""Fraction of a processor from which on a process is busy."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

LEAST_COUNT = 10
"""Minimum occurrences before a phase's timing is trusted: the first iterations load, compile and allocate."""

MULTIPLE_IDLE, MULTIPLE_BUSY = 5, 10
"""Limit as a multiple of the slowest occurrence."""

REGULAR = ("rollout", "update")
"""Phases that only compute. The others write files, or wait for services, which may occasionally be slow."""

PATIENCE = 4
"""Irregular phases and busy processes get at least this multiple of the floor."""

ENOUGH = 2
"""A rank that goes without progress for this multiple of a learned limit hangs. At the limit itself it only warns."""

TICK_S = 1.0
"""Longest time between two looks."""

COMPILING = 12
"""How many times the ceiling a rank that is warming up may compute at one place of its stack, as compilers do."""

_DEBUGGERS = ("/bdb.py", "/pydevd.py")
"""Files of Python's debuggers. While one of them has the thread, somebody looks at it."""


class Activity:
    """Reports whether this process or a descendant used CPU since the last call, not counting the calling thread."""

    def __init__(self, thread: int) -> None:
        self._thread = thread  # native id of the one whose waits for a disk count
        self._own_s, self._looked_s = _measure_own(), time.monotonic()
        self._others_s: dict[int, float] | None = None

    def was_busy(self, *, stalled: bool) -> bool:
        """Return whether there was anything that a processor has to do since the last call.

        Where that cannot be seen, as without a free descriptor, it is taken to be busy. Unless the rank is stalled, the
        answer is about this process alone, which costs less.
        """
        with contextlib.suppress(OSError):
            before_s, self._looked_s = self._looked_s, time.monotonic()
            own_s, self._own_s = self._own_s, _measure_own()
            used_s = self._own_s - own_s
            others_s, self._others_s = self._others_s, _measure_descendants() if stalled else None
            if others_s is not None and self._others_s is not None:  # a new process, such as a compiler, counts whole
                used_s += sum(now_s - others_s.get(pid, 0.0) for pid, now_s in self._others_s.items())
            return used_s >= _BUSY * (self._looked_s - before_s)
        return True

    def waits_for_disk(self) -> bool:
        """Tell whether the thread is in uninterruptible sleep, as in reads and writes of disks and network folders."""
        with contextlib.suppress(OSError):
            return read_stat(f"self/task/{self._thread}")[0] == "D"
        return False


def _measure_own() -> float:
    """Return the seconds for which the other threads of this process have run, or have waited for a processor."""
    used_ns, tasks, own = 0, Path("/proc/self/task"), str(threading.get_native_id())
    for task in tasks.iterdir() if tasks.exists() else ():
        if task.name == own:  # on a busy machine, to look takes long
            continue
        with contextlib.suppress(OSError, ValueError):  # it has ended, or this kernel does not count
            running, waiting, _ = (task / "schedstat").read_text().split()
            used_ns += int(running) + int(waiting)
    return used_ns / 1e9 or time.process_time() - time.thread_time()


def _measure_descendants() -> dict[int, float]:
    """Return the seconds of processor time that each process below this one has used."""
    used = {}
    for pid in list_descendants(os.getpid()) if Path("/proc/self").exists() else ():
        with contextlib.suppress(OSError):
            fields = read_stat(pid)
            used[pid] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return used


@dataclass(frozen=True, kw_only=True)
class PhaseLimits:
    """The limits of one rank.

    A process that is idle, although it does not wait for other ranks, hangs: a machine that is suddenly busy cannot
    explain it. One that is busy may compile, or share its processor with others, so it gets more time.
    """

    floor_s: float | None
    """Shortest limit that is learned, in seconds; None learns nothing."""

    ceiling_s: float
    """The limit where nothing is learned, in seconds."""

    def find(self, phase: str, durations: Mapping[str, Durations], *, idle: bool) -> float | None:
        """Return after how long without progress a rank warns, in seconds; None where only the ceiling holds.

        It hangs after `ENOUGH` times that.
        """
        shown = durations.get(phase)
        if self.floor_s is None or shown is None or shown.count < LEAST_COUNT:
            return None
        floor_s = self.floor_s if idle and phase in REGULAR else PATIENCE * self.floor_s
        limit_s = max(floor_s, (MULTIPLE_IDLE if idle else MULTIPLE_BUSY) * shown.slowest_s)
        return limit_s if ENOUGH * limit_s < self.ceiling_s else None


def explain_limit(
    phase: str, durations: Mapping[str, Durations], *, passed_s: float, limit_s: float, phase_s: float
) -> str:
    """Say in words why a rank hangs, or may hang, that went without progress for longer than it ever has."""
    shown = durations[phase]
    usual_s = shown.total_s / shown.count
    return (
        f"no progress for {passed_s:.3g} s: phase {phase} has taken {phase_s:.3g} s, usually {usual_s:.2g} s and never "
        f"more than {shown.slowest_s:.2g} s (limit {limit_s:.3g} s; --heartbeat-floor-s)"
    )


class Progress:
    """Looks at one thread: at its beats, and at its stack until the first beat and while the rank is warming up.

    While the rank is warming up, it also makes progress when its process computes, for `COMPILING` times the ceiling.
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
        self._stalled_s = self._outside_disk_s = self._idle_s = 0.0
        self._has_warned = False

    def look(self) -> dict[str, Any]:
        """Return a count that grows with progress, what the rank is doing, and whether it hangs by what it has shown.

        That is a line about the limit, or no words.
        """
        beat, (stack, waits) = heartbeat.current, self._read_stack()
        now = (beat.beats, stack if beat.beats == 0 or beat.warming_up else [])
        stalled = now == self._last and not waits and not _is_output_held()
        in_disk = stalled and self._activity.waits_for_disk()
        busy = self._activity.was_busy(stalled=stalled) or in_disk
        before_s, self._looked_s = self._looked_s, time.monotonic()
        if not stalled:
            self._count += now != self._last
            self._last, self._has_warned = now, False
            self._stalled_s = self._outside_disk_s = self._idle_s = 0.0
        else:
            passed_s = min(self._looked_s - before_s, 2 * TICK_S)  # this process may have been stopped meanwhile
            self._stalled_s += passed_s
            self._outside_disk_s += 0.0 if in_disk else passed_s  # a sync of a large file has the ceiling only
            self._idle_s = max(0.0, self._idle_s - 2 * passed_s) if busy else self._idle_s + passed_s
            self._count += beat.warming_up and busy and self._stalled_s < COMPILING * self._limits.ceiling_s
        return {"progress": self._count, "phase": beat.phase, "waits": waits, "overdue": self._find_overdue(beat)}

    def _find_overdue(self, beat: heartbeat.Heartbeat) -> str:
        """Say why the rank hangs, if it does; warn before that."""
        for idle, stalled_s in ((True, self._idle_s), (False, self._outside_disk_s)):
            limit_s = self._limits.find(beat.phase, beat.durations, idle=idle)
            if limit_s is None or stalled_s <= limit_s:
                continue
            hangs, end_s = stalled_s > ENOUGH * limit_s, ENOUGH * limit_s
            words = explain_limit(
                beat.phase,
                beat.durations,
                passed_s=end_s if hangs else limit_s,
                limit_s=end_s,
                phase_s=time.monotonic() - beat.began_s,
            )
            if hangs:
                return words
            self._warn(words)
        return ""

    def _warn(self, words: str) -> None:
        """Write a warning with the stack to standard error, once, and past a lock that the thread may hold."""
        if not self._has_warned:
            self._has_warned = True
            with contextlib.suppress(OSError):
                os.write(2, f"warning: {words}. Its Python stack:\n{self.show_stack()}".encode())

    def _read_stack(self) -> tuple[list[tuple[int, int]], bool]:
        """Return the places of the thread's stack, and whether it waits for other ranks or for a person."""
        places, waits = [], heartbeat.current.waiting
        for frame in self._frames():
            places.append((id(frame), frame.f_lineno))
            file = frame.f_code.co_filename
            waits = waits or "/torch/distributed/" in file or file.endswith(_DEBUGGERS)
        return places, waits

    def show_stack(self) -> str:
        """Return the stack of the thread, as a traceback shows it."""
        stack = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in self._frames())
        stack.reverse()
        return "".join(stack.format())

    def _frames(self) -> list[FrameType]:
        """Return the frames of the thread, the innermost first."""
        # CPython 3.11 was seen to crash in `f_back`, probably where the thread ran meanwhile. It can run whenever this
        # one evaluates Python code or collects garbage. Hence one call of C finds all frames, without a collection.
        found: list[Any] = []
        go_back: Any = getattr  # with "f_back", in C
        collects = gc.isenabled()
        gc.disable()
        try:
            with contextlib.suppress(AttributeError):  # the outermost frame has None for f_back
                first: Any = sys._current_frames().get(self._thread)
                found.extend(accumulate(chain((first,), repeat("f_back")), go_back))
        finally:
            if collects:
                gc.enable()
        return [frame for frame in found if isinstance(frame, FrameType)]


def _is_output_held() -> bool:
    """Tell whether standard output or error takes nothing more, as after Ctrl-S in the terminal."""
    try:
        return len(select.select([], [1, 2], [], 0)[1]) < 2
    except (OSError, ValueError):  # one of them is closed
        return False
