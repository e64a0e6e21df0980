"""Standard output that another program has made non-blocking takes everything, however slow its reader is."""

import contextlib
import errno
import os
import select
import sys
import threading
from collections.abc import Iterator

import pytest

from mjtrain.launcher.job.outputs import Console
from mjtrain.runtime.standard_streams import lenient_streams, try_to_write_to_stderr
from support.machine import full_pipe, patience, wait_until

TEXT = "x" * (1 << 20)
"""More than a pipe holds."""


@contextlib.contextmanager
def slow_reader(size: int) -> Iterator[bytearray]:
    """Let standard output be a pipe whose reader begins when it is full, and ends after this many bytes."""
    received = bytearray()
    read, write = os.pipe()
    os.set_blocking(write, False)

    def receive() -> None:
        wait_until(lambda: not select.select([], [write], [], 0)[1], "the pipe is full")
        while len(received) < size:
            received.extend(os.read(read, 4096))
        os.close(read)

    thread = threading.Thread(target=receive)
    with open(write, "w") as stdout, pytest.MonkeyPatch.context() as patch:  # noqa: PTH123
        patch.setattr(sys, "stdout", stdout)
        thread.start()
        yield received
        thread.join(patience(10))


def test_a_write_waits_for_a_slow_reader() -> None:
    with slow_reader(len(TEXT)) as received, lenient_streams() as find_error:
        sys.stdout.write(TEXT)
        assert find_error() is None
    assert received.decode() == TEXT


def test_a_write_that_waits_ends_with_its_reader() -> None:
    with slow_reader(4096), lenient_streams() as find_error:
        sys.stdout.write(TEXT)
        error = find_error()
    assert error is not None
    assert error.errno == errno.EPIPE


def test_the_output_of_ranks_waits_for_a_slow_reader() -> None:
    with slow_reader(len(TEXT) + 3) as received:
        sys.stdout.write("own")
        console = Console()
        console.write("stdout", TEXT.encode())
        console.close(patience(10))
    assert received.decode() == "own" + TEXT


def test_a_line_that_standard_error_does_not_take_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a process that must end waits for anyone who holds the output back."""
    read, write = full_pipe()
    with open(write, "w") as stderr:  # noqa: PTH123
        monkeypatch.setattr(sys, "stderr", stderr)
        writer = threading.Thread(target=try_to_write_to_stderr, args=(TEXT,), daemon=True)
        writer.start()
        writer.join(patience(5.0))
        assert not writer.is_alive()
        while select.select([read], [], [], 0)[0]:
            os.read(read, 4096)
        try_to_write_to_stderr("read")
        assert os.read(read, 4096) == b"read\n"
    os.close(read)
