"""What this machine has: packages, GPUs, free memory, and folders that can be written."""

import importlib.metadata
import os
import re
from pathlib import Path

import pynvml

from mjtrain.runtime.cgroups import find_cgroups, read_text

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
            free.append(limit - used + _read_cache(folder))
    return max(0, min(free))


_LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")
_USAGE_FILES = ("memory.current", "memory.usage_in_bytes")


def _read_number(folder: Path, names: tuple[str, ...]) -> int | None:
    for name in names:
        if text := read_text(folder / name).strip():
            return int(text) if text.isdigit() else None  # "max" is not a limit
    return None


def _read_cache(folder: Path) -> int:
    """Return how much of a cgroup's memory holds files that the kernel would drop first."""
    found = re.search(r"^(?:total_)?inactive_file (\d+)$", read_text(folder / "memory.stat"), re.MULTILINE)
    return int(found[1]) if found else 0


def free_gpu_memory(gpu: str) -> int | None:
    """Return the free bytes of a GPU as its driver counts them, without initialising CUDA; None if it does not say.

    Args:
        gpu: Index of the driver, or UUID of a GPU or MIG slice.
    """
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
