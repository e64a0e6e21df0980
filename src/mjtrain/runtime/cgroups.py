"""What the cgroups of this process allow it, of either version."""

import os
from collections.abc import Iterator
from pathlib import Path


def find_cgroups(controller: str) -> Iterator[Path]:
    """Yield this process's cgroups of a controller, such as "cpu", and those around them, the innermost first."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            root = Path("/sys/fs/cgroup") / (controller if controllers else "")
            own = root / name.lstrip("/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(root))


def cpu_quota() -> float | None:
    """Return how many cores' worth of time the cgroups allow; None for no limit."""
    found = []
    for folder in find_cgroups("cpu"):
        words = read_text(folder / "cpu.max").split()  # version 2: quota and period, in microseconds
        if not words:
            words = [read_text(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


def count_cores() -> int:
    """Return how many cores this process may keep busy: those it may run on, or fewer under a quota of CPU time."""
    usable, quota = len(os.sched_getaffinity(0)), cpu_quota()
    return usable if quota is None else max(1, min(usable, int(quota)))


def max_tasks() -> int | None:
    """Return how many more processes and threads the cgroups allow; None for no limit."""
    found = []
    for folder in find_cgroups("pids"):
        limit, used = (read_text(folder / name).strip() for name in ("pids.max", "pids.current"))
        if limit.isdigit() and used.isdigit():
            found.append(int(limit) - int(used))
    return min(found, default=None)


def read_text(path: Path) -> str:
    """Return the content of a file of a cgroup; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
