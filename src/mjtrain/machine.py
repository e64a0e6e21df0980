"""What this machine has: packages, GPUs, and folders that can be written."""

import importlib.metadata
import os
from pathlib import Path

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
)
"""Packages on which a run depends. They must be the same on every host of a job, and are recorded with each run."""


def installed_packages() -> dict[str, str | None]:
    """Return the versions of `PACKAGES` here; None for a package that is missing."""
    return {package: _version(package) for package in PACKAGES}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def count_gpus() -> int:
    """Count the GPUs that CUDA sees under the variables of this process."""
    import torch  # seconds of import, which not every command needs

    return torch.cuda.device_count()


def is_writable(folder: Path) -> bool:
    """Whether a folder can be written, or created if it does not exist yet."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    return existing.is_dir() and os.access(existing, os.W_OK)
