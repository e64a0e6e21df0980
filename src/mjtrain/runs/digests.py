"""Digests of files and folders that somebody named, which may be the whole disk."""

import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path

MAX_DATA_MIB = 256
"""Data beyond this is not copied, and is compared by the part before it."""

MAX_DATA_FILES = 10_000
"""The same of a folder with more files and folders than this."""

PART = "part:"
"""What the digest of a part begins with."""

_CHUNK = 2**20


def measure(path: Path) -> tuple[str, int]:
    """Measure a file, or all files of a folder with their names, in a time that the limits bound.

    Returns:
        The SHA-256, and the size in bytes. Beyond the limits, the digest is of what is before them, and begins with
        "part:"; the size is then that of what was looked at.
    """
    limit = MAX_DATA_MIB * 2**20
    if kind_of(path) != stat.S_IFDIR:
        digest, size = _hash_file(path, limit)
        return (PART if size > limit else "") + digest, size
    of_folder, size = hashlib.sha256(), 0
    for count, item in enumerate(list_items(path)):
        if size > limit or count > MAX_DATA_FILES:
            return PART + of_folder.hexdigest(), size
        if kind_of(item) == stat.S_IFREG:
            of_file, bytes_of_file = _hash_file(item, limit)
            of_folder.update(f"{item.relative_to(path)}\0{of_file}\n".encode())
            size += bytes_of_file
    return (PART if size > limit else "") + of_folder.hexdigest(), size


def _hash_file(path: Path, limit: int) -> tuple[str, int]:
    """Return the SHA-256 of the first bytes of a file, up to the limit, and its size."""
    digest, size = hashlib.sha256(), 0
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            for begin in range(0, min(size, max(limit, 1)), _CHUNK):  # by its size: some files of /proc have no end
                digest.update(file.read(min(_CHUNK, size - begin)))
    except OSError:  # it may not be read: its name and size are compared
        pass
    return digest.hexdigest(), size


def kind_of(path: Path) -> int:
    """Return the format bits of the mode of a file, see `stat`; 0 where there is none, or where it may not be asked."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except (OSError, ValueError):
        return 0


def list_items(path: Path) -> Iterator[Path]:
    """Yield a file, or a folder and all that is in it, sorted by the parts of their paths."""
    waiting = [path]
    while waiting:
        item = waiting.pop()
        yield item
        if kind_of(item) == stat.S_IFDIR:
            try:
                waiting += sorted(item.iterdir(), reverse=True)
            except OSError:  # a folder that may not be read
                continue
