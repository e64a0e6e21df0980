"""Where the output of ranks goes: rank 0's to the console as it is, warnings of the others too, all of it to files."""

import contextlib
import fcntl
import os
import pty
import queue
import re
import struct
import sys
import termios
import threading
from datetime import datetime
from pathlib import Path
from typing import IO, Literal

from mjtrain.launcher.ipc.messages import HostConnection
from mjtrain.runtime.standard_streams import await_writable, find_descriptor

Stream = Literal["stdout", "stderr"]

_MAX_PENDING = 1 << 20
"""Bytes that may wait for a slow console before the ranks have to wait too."""

_MAX_LOG_PENDING = 1 << 24
"""Bytes of one log that may wait for a disk that does not respond."""

_CONTROL = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]")
"""Escape sequences: colours and moves of the cursor."""


class Console:
    """The launcher's own standard streams, written by a thread so that a console that hangs does not hang the rest."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Stream, bytes] | None] = queue.SimpleQueue()
        self._pending = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._write_all, name="mjtrain-console", daemon=True)
        self._thread.start()

    @property
    def congested(self) -> bool:
        """Whether so much waits that no more should be read."""
        return self._pending > _MAX_PENDING

    def write(self, stream: Stream, data: bytes) -> None:
        """Queue output."""
        with self._lock:
            self._pending += len(data)
        self._queue.put((stream, data))

    def close(self, timeout_s: float) -> None:
        """Write what is queued, as far as the console takes it in time."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            stream, data = item
            with contextlib.suppress(OSError, ValueError):  # the console is gone; the files have it all
                _write(getattr(sys, stream), data)
            with self._lock:
                self._pending -= len(data)


def _write(stream: IO[str] | None, data: bytes) -> None:
    """Write bytes to a standard stream as they are, or as text if it is not one of the operating system's."""
    if stream is None:  # this process was started without it
        return
    descriptor = find_descriptor(stream)
    if descriptor is None:
        stream.flush()
        stream.write(data.decode(errors="replace"))
        return
    while data:
        try:
            stream.flush()
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            await_writable(descriptor)


class RemoteConsole:
    """The console of a launcher on another host."""

    def __init__(self, connection: HostConnection) -> None:
        self._connection = connection

    @property
    def congested(self) -> bool:
        """Whether so much waits that no more should be read."""
        return self._connection.congested

    def write(self, stream: Stream, data: bytes) -> None:
        """Queue output."""
        self._connection.send("output", data, stream=stream)

    def close(self, timeout_s: float) -> None:
        """Send what is queued, as far as that is possible in time."""
        self._connection.flush(timeout_s)


Sink = Console | RemoteConsole
"""Where the ranks' output goes."""


class RankOutput:
    """What one rank writes, on its way to console and file."""

    def __init__(self, rank: int, console: Sink, log: "LogFile | None", *, is_here: bool = True) -> None:
        """Open the pipes, or for rank 0 on a terminal a separate terminal."""
        self._rank = rank
        self._console = console
        self._log = log
        self._terminals: list[int] = []
        self._rest: dict[int, bytes] = {}
        self._muted = False
        self.write_ends: list[int] = []
        """What becomes the rank's standard output and standard error; to be closed once it has them."""
        self.streams: dict[int, Stream] = {}
        """The ends to read from, and which stream each of them is."""
        streams: tuple[Stream, ...] = ("stdout", "stderr")
        with contextlib.ExitStack() as opened:  # to be closed if one of them cannot be opened
            for stream in streams[:1] if rank == 0 and is_here and _same_target() else streams:
                read, write = self._open(rank == 0 and is_here and _is_terminal(stream), opened)
                self.streams[read] = stream
                self.write_ends.append(write)
            if len(self.write_ends) == 1:
                self.write_ends.append(os.dup(self.write_ends[0]))
            opened.pop_all()

    def _open(self, terminal: bool, opened: contextlib.ExitStack) -> tuple[int, int]:
        read, write = pty.openpty() if terminal else os.pipe()
        opened.callback(os.close, read)
        opened.callback(os.close, write)
        if terminal:
            attributes = termios.tcgetattr(write)
            attributes[1] &= ~termios.OPOST  # the real terminal turns line feeds into new lines; once is enough
            attributes[3] &= ~termios.ECHO
            termios.tcsetattr(write, termios.TCSANOW, attributes)
            self._terminals.append(read)
        os.set_blocking(read, False)
        self._rest[read] = b""
        return read, write

    def close_write_ends(self) -> None:
        """Close the rank's ends here, once it has them."""
        for descriptor in self.write_ends:
            os.close(descriptor)
        self.write_ends = []

    def follow_size(self) -> None:
        """Set the size of rank 0's terminal to that of the real one."""
        for terminal in self._terminals:
            with contextlib.suppress(OSError):
                size = os.get_terminal_size(sys.__stdout__.fileno() if sys.__stdout__ else 1)
                fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.lines, size.columns, 0, 0))

    def mute(self) -> None:
        """Write no more to the console, which is for the cause of a failure now; the files still get everything."""
        self._muted = self._rank != 0

    def pump(self, read: int) -> bool:
        """Read what has arrived; return whether more can follow. The caller closes a stream that has ended."""
        try:
            data = os.read(read, 65536)
        except BlockingIOError:
            return True
        except OSError:  # how a terminal says that all writers have closed it
            data = b""
        if not data:
            self._take_lines(read, self._rest[read] + b"\n" if self._rest[read] else b"")
            self.streams.pop(read)
            self._terminals = [terminal for terminal in self._terminals if terminal != read]
            return False
        if self._rank == 0:
            self._console.write(self.streams[read], data)
        self._take_lines(read, self._rest[read] + data)
        return True

    def _take_lines(self, read: int, data: bytes) -> None:
        *lines, self._rest[read] = data.split(b"\n")
        for line in lines:
            # A progress bar draws over itself; its last state is the line.
            text = _CONTROL.sub(b"", line.rstrip(b"\r").rpartition(b"\r")[2])
            if self._log is not None:
                self._log.write(text)
            if self._rank != 0 and self.streams[read] == "stderr" and text.strip() and not self._muted:
                self._console.write("stderr", b"[rank %d] %s\n" % (self._rank, text))


class LogFile:
    """A log on disk: a line at a time, each with its time.

    A thread writes it, as a network folder may take any time. A disk that takes no more is reported once and ends
    nothing.
    """

    def __init__(self, path: Path, console: Sink) -> None:
        self.path = path
        self._console = console
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending = self._missing = 0
        self._failed = False
        self._thread = threading.Thread(target=self._write_all, name="mjtrain-log", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Queue a line. Where too much waits already it is left out, and its place says so."""
        with self._lock:
            if self._pending > _MAX_LOG_PENDING:
                self._missing += 1
                told = self._missing > 1
            else:
                note = b"(%d lines are missing here)\n" % self._missing if self._missing else b""
                data = note + datetime.now().strftime("%Y-%m-%d %H:%M:%S ").encode() + line + b"\n"
                self._missing, self._pending = 0, self._pending + len(data)
                self._queue.put(data)
                return
        if not told:
            self._warn("does not respond; lines are left out until it does")

    def close(self, timeout_s: float) -> None:
        """Write what is queued, as far as the disk takes it in time, and close the file."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _warn(self, problem: str) -> None:
        self._console.write("stderr", f"warning: {self.path} {problem}\n".encode())

    def _write_all(self) -> None:
        with contextlib.ExitStack() as stack:
            file, data = None, b""
            while data is not None:
                try:
                    file = file or stack.enter_context(self.path.open("ab", buffering=0))
                    file.write(data)
                except OSError as error:
                    if not self._failed:
                        self._warn(f"cannot be written: {error.strerror}")
                    self._failed = True
                with self._lock:
                    self._pending -= len(data)
                data = self._queue.get()


def _is_terminal(stream: Stream) -> bool:
    descriptor = find_descriptor(getattr(sys, stream))
    return descriptor is not None and os.isatty(descriptor)


def _same_target() -> bool:
    """Whether both streams end in the same place, so that their order can be kept."""
    stdout, stderr = find_descriptor(sys.stdout), find_descriptor(sys.stderr)
    try:
        return stdout is not None and stderr is not None and os.path.sameopenfile(stdout, stderr)
    except OSError:
        return False
