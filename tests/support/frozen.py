"""File systems that fail: every write waits in the kernel, every access is an error, or no file can grow."""

import ctypes
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.machine import wait_until


@contextmanager
def frozen_file_system(folder: Path) -> Iterator[Path]:
    """Mount one below a folder for a with block; skips the test where that is not allowed."""
    image, place = folder / "image", folder / "place"
    place.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 16 << 20)
    for command in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, place], ["fsfreeze", "-f", place]):
        if shutil.which(str(command[0])) is None or not _succeeds(*map(str, command)):
            _succeeds("umount", str(place))
            pytest.skip(f"no file system can be frozen here: {command[0]} fails")
    try:
        yield place
    finally:
        thaw(place)
        wait_until(lambda: _succeeds("umount", str(place)), "it is unmounted")


@contextmanager
def dead_file_system(place: Path) -> Iterator[None]:
    """Mount one over a folder for a with block; skips the test where that is not allowed."""
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    options = f"fd={server},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    failed = ctypes.CDLL(None).mount(b"dead", os.fsencode(place), b"fuse", 0, options.encode())
    os.close(server)
    if failed:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        assert _succeeds("umount", str(place))


@contextmanager
def full_disk(room: int = 1) -> Iterator[None]:
    """Let no file of this process grow beyond some bytes, as if the disk were full."""
    before, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def thaw(place: Path) -> None:
    """Let the writes continue."""
    _succeeds("fsfreeze", "-u", str(place))


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
