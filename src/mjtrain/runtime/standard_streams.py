"""Standard output and error, which a process may have been started without (`>&- 2>&-`)."""

import contextlib
import faulthandler
import io
import os
import select
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

_PATIENCE_S = 1.0
"""How long to wait for a reader of standard error that reads nothing."""


def open_missing_streams() -> None:
    """Open /dev/null in place of each standard stream that this process was started without.

    Otherwise the next file or socket that is opened gets the free descriptor, and with it whatever native libraries
    write to "standard error".
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115


def show_crashes() -> None:
    """Have a crash of native code write the Python stacks to standard error, unless they are written already."""
    if not faulthandler.is_enabled():
        faulthandler.enable(2)


@contextlib.contextmanager
def lenient_streams() -> Iterator[Callable[[], OSError | None]]:
    """Let writes to standard output and error never raise during a with block: work does not end with its reader.

    Streams that are not those of the operating system stay as they are.

    Yields:
        A function that returns the last error of standard output; None without.
    """
    before, files = {}, {}
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        descriptor = find_descriptor(stream) if type(stream) is io.TextIOWrapper else None
        if descriptor is None:  # it belongs to a notebook or a test, or is in memory
            continue
        flush_standard_streams()
        before[name], files[name] = stream, _LenientFile(descriptor, "w", closefd=False)
        lenient = io.TextIOWrapper(
            io.BufferedWriter(files[name]),
            encoding=stream.encoding,
            errors="backslashreplace" if stream.errors == "strict" else stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, lenient)

    def find_error() -> OSError | None:
        flush_standard_streams()
        return files["stdout"].error if "stdout" in files else None

    try:
        yield find_error
    finally:
        flush_standard_streams()
        for name, stream in before.items():
            setattr(sys, name, stream)


class _LenientFile(io.FileIO):
    """Drops what its descriptor does not take, as a pipe without a reader or a full disk, and keeps the error."""

    error: OSError | None = None

    def write(self, data: Any) -> int | None:
        try:
            while (written := super().write(data)) is None:
                await_writable(self.fileno())
            return written
        except OSError as error:
            self.error = error
            return memoryview(data).nbytes


def await_writable(descriptor: int, wait_s: float | None = None) -> bool:
    """Wait until a write would take something or fail, and return whether it would by then.

    Another program may have made a shared stream non-blocking.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)  # the end of the reader ends the wait too
    return bool(poll.poll(None if wait_s is None else 1000 * wait_s))


def flush_standard_streams() -> None:
    """Flush standard output and error, as far as they are there and can be written."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


def write_to_stderr(text: str) -> None:
    """Write a line to standard error, if that is open and can be written."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def try_to_write_to_stderr(text: str) -> None:
    """Write a line as `write_to_stderr`, but leave out what standard error does not take soon, as after Ctrl-S."""
    descriptor = find_descriptor(sys.stderr)
    if descriptor is None:
        write_to_stderr(text)
        return
    data = f"{text}\n".encode(sys.stderr.encoding, "backslashreplace")
    with contextlib.suppress(OSError):
        while data and await_writable(descriptor, _PATIENCE_S):
            data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]  # which a pipe that is writable takes


def find_descriptor(stream: IO[str] | None) -> int | None:
    """Return the descriptor of a standard stream that is a file; that of a notebook leads to another terminal."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    try:
        return stream.fileno()
    except (OSError, ValueError):  # a file in memory, or one that is closed
        return None


def printable(text: str) -> str:
    """Escape what would control a terminal, such as colours, cursor moves and changes of direction."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
