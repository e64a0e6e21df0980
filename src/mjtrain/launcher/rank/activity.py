"""Whether this process does anything, as Linux counts it: it computes, waits for a processor, or for a disk."""

import contextlib
import os
import threading
import time
from pathlib import Path

from mjtrain.launcher.ipc.processes import list_descendants

_BUSY = 0.1
"""Fraction of a processor from which on a process is busy."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Activity:
    """Tells of the time between two looks whether this process and its descendants were busy, but for who looks.

    Args:
        thread: Native id of the thread whose work counts, for its waits for a disk.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._own_s, self._looked_s = _measure_own(), time.monotonic()
        self._others_s: dict[int, float] | None = None

    def was_busy(self, *, stalled: bool) -> bool:
        """Return whether there was anything that a processor or a disk has to do since the last call.

        Args:
            stalled: Whether it matters. Otherwise the answer is about this process alone, which costs less.
        """
        before_s, self._looked_s = self._looked_s, time.monotonic()
        own_s, self._own_s = self._own_s, _measure_own()
        used_s = self._own_s - own_s
        if not stalled:
            self._others_s = None
            return used_s >= _BUSY * (self._looked_s - before_s)
        others_s, self._others_s = self._others_s, _measure_descendants()
        if others_s is not None:  # a process that is new, such as a compiler, counts as a whole
            used_s += sum(now_s - others_s.get(pid, 0.0) for pid, now_s in self._others_s.items())
        return used_s >= _BUSY * (self._looked_s - before_s) or _waits_for_disk(self._thread)


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
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used[pid] = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return used


def _waits_for_disk(thread: int) -> bool:
    """Tell whether a thread is in uninterruptible sleep, as in reads and writes of disks and of network folders."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] == "D"
    return False
