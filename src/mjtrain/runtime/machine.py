"""What this machine has: packages and what they register, GPUs, folders, and what cgroups leave of cores and memory."""

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Any

import pynvml

PACKAGES = (
    "mjtrain",
    "torch",
    "torchrunx",
    "rsl-rl-lib",
    "tensordict",
    "mujoco",
    "mujoco-warp",
    "warp-lang",
    "numpy",
    "cloudpickle",
    "mjtrain-learners",
    "rl-games",
    "skrl",
)
"""Packages on which a run depends. They must be the same on every host of a job, and are recorded with each run."""

_LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
_USAGE_FILES = ("memory.current", "memory.usage_in_bytes")


def find_entry_points(group: str) -> EntryPoints:
    """Return what is registered under a group; packages that are installed later are found."""
    return _read_entry_points(tuple((place, _changed_ns(place)) for place in sys.path)).select(group=group)


@lru_cache(maxsize=1)
def _read_entry_points(_: tuple[tuple[str, int], ...]) -> Any:
    """Read all that is registered. A command asks six times, and an answer takes 20 ms with a hundred packages."""
    return importlib.metadata.entry_points()  # of a type that changed with Python 3.12


def _changed_ns(place: str) -> int:
    try:
        return Path(place).stat().st_mtime_ns
    except OSError:
        return 0


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


def installed_packages() -> dict[str, str | None]:
    """Return the versions of `PACKAGES` here; None for a package that is missing."""
    return {package: _version(package) for package in PACKAGES}


def _version(package: str) -> str | None:
    try:
        found = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    # `found.version` parses the whole file as an e-mail, with the package's description.
    line = re.search(r"^Version: *(\S+)", found.read_text("METADATA") or "", re.MULTILINE)
    return line[1] if line else found.version


def count_gpus() -> int:
    """Count the GPUs that CUDA sees under the variables of this process."""
    import torch  # seconds of import, which not every command needs

    return torch.cuda.device_count()


def nearest_existing(folder: Path) -> Path:
    """Return the folder, or the first above it that exists: a run creates the rest."""
    # Path.exists raises where this user may not look.
    return next(place for place in (folder, *folder.parents) if os.path.exists(place))  # noqa: PTH110


def is_writable(folder: Path) -> bool:
    """Whether a folder can be written, or created if it does not exist yet."""
    existing = nearest_existing(folder)
    return existing.is_dir() and os.access(existing, os.W_OK)


def available_memory() -> int:
    """Return how many bytes of RAM programs may still take, here and within the limits of this process's cgroups."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    free = [int(found[1]) * 1024] if found else [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for folder in find_cgroups("memory"):
        limit, used = (_read_number(folder, names) for names in (_LIMIT_FILES, _USAGE_FILES))
        if limit is not None and used is not None:
            found = re.search(r"^(?:total_)?inactive_file (\d+)$", read_text(folder / "memory.stat"), re.MULTILINE)
            free.append(limit - used + (int(found[1]) if found else 0))  # files that the kernel would drop first
    return max(0, min(free))


def _read_number(folder: Path, names: tuple[str, ...]) -> int | None:
    for name in names:
        if text := read_text(folder / name).strip():
            return int(text) if text.isdigit() else None  # "max" is not a limit
    return None


def free_gpu_memory(gpu: str) -> int | None:
    """Return the free bytes of a GPU, by its driver's index or UUID, without initialising CUDA; None if unknown."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    find = pynvml.nvmlDeviceGetHandleByIndex if gpu.isdigit() else pynvml.nvmlDeviceGetHandleByUUID
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(find(int(gpu) if gpu.isdigit() else gpu)).free)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def format_bytes(count: int) -> str:
    """Write bytes with three digits, such as 1.23 GB."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}" if count < 999.5 * factor else f"{count / factor:,.0f} {unit}"
    return f"{count} B"
