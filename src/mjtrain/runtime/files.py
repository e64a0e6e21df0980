"""Files that appear under their name only when they are complete."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def partial_path(path: Path) -> Path:
    """Name the file or folder that is written before it gets the name of `path`."""
    return path.with_name(f".{path.name}.partial")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace a file at the end of the with block; an exception leaves the earlier file, and no partial one.

    Yields:
        The partial file, which the block writes and closes. It is not synchronised to the disk here.
    """
    partial = partial_path(path)
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_stream(path: Path) -> Iterator[IO[bytes]]:
    """Do as `replacing` for a stream of bytes; the content and the new name survive a power failure.

    Raises:
        OSError: It could not be written; the earlier file is unchanged.
    """
    with replacing(path) as partial, partial.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(path.parent)


def write_whole(path: Path, content: str | bytes) -> None:
    """Replace a file by this content, as `replacing_stream` does; text is UTF-8."""
    with replacing_stream(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
