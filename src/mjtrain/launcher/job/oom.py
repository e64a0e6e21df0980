"""Whether the kernel killed a process because memory ran out, as far as it says so."""

import contextlib
import os
import re
from pathlib import Path


class OomWatch:
    """Remembers what the kernel has reported so far, and afterwards tells what is new."""

    def __init__(self) -> None:
        self._counters = {path: count for path in _counter_files() if (count := _read_count(path)) is not None}
        self._log: int | None = None
        with contextlib.suppress(OSError):  # often only root can read the kernel's log
            self._log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._log, 0, os.SEEK_END)

    def explain(self, pid: int) -> str | None:
        """Say in words that the out-of-memory killer ended this process, which got a SIGKILL; None if it did not."""
        if self._log is not None and re.search(rf"Killed process {pid}\b", self._read_log()):
            return "by the kernel's out-of-memory killer"
        if any((_read_count(path) or 0) > count for path, count in self._counters.items()):
            return "most likely by the kernel's out-of-memory killer, which was active meanwhile"
        return None

    def close(self) -> None:
        """Close the kernel's log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _read_log(self) -> str:
        assert self._log is not None
        records = []
        while True:
            try:
                records.append(os.read(self._log, 8192).decode(errors="replace"))
            except BrokenPipeError:
                continue  # records were overwritten before they were read; the next read goes on after them
            except OSError:
                return "".join(records)


def _counter_files() -> list[Path]:
    """List where the kernel counts its kills: this process's cgroup, of either version, or the whole machine."""
    files = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files += [Path(f"{root}{path}/memory.events") for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")]
        elif "memory" in controllers.split(","):
            files.append(Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control"))
    there = [file for file in files if _read_count(file) is not None]
    return there or [Path("/proc/vmstat")]


def _read_count(path: Path) -> int | None:
    try:
        found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
