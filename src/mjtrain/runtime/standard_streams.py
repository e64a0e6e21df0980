"""Standard output and error, which a process may have been started without (`>&- 2>&-`)."""

import contextlib
import os
import sys
from pathlib import Path


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


def flush_standard_streams() -> None:
    """Flush standard output and error, as far as they are there and can be written."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


def write_to_stderr(text: str) -> None:
    """Write a line to standard error, if it is there and can be written."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def printable(text: str) -> str:
    """Escape what would control a terminal, such as colours, cursor moves and changes of direction."""
    escaped = (char if char.isprintable() else char.encode("unicode_escape", "backslashreplace") for char in text)
    return "".join(char if isinstance(char, str) else char.decode() for char in escaped)
