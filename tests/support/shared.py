"""What the workers of a session of pytest make once and share."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that the first worker to come fills, while the others wait.

    Args:
        factory: The session's folders.
        name: Name of the folder; it stands for everything that its content depends on.
        make: Fills the folder, which is there and empty.
    """
    base = factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = root / name, root / f"{name}.done"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir(parents=True)
            make(folder)
            done.touch()
    return folder
