"""What tests ask of the machine: how slow it is now, a free port, a file below /proc, the end of a wait."""

import contextlib
import itertools
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SLOWNESS = "MJTRAIN_TEST_SLOWNESS"
"""Environment variable with the result of `measure_slowness`, which the workers of pytest-xdist inherit."""

IDLE_S = 2.0
"""A Python process that imports torch takes less than this on an idle machine."""

PATIENCE = 6.0
"""How much longer than on an idle machine a wait may take while other tests run on the same cores."""

PORTS_PER_WORKER = 500

_counter = itertools.count(os.getpid() % PORTS_PER_WORKER)


def measure_slowness() -> float:
    """Return how many times longer than on an idle machine a Python process takes to import torch; at least 1."""
    since = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return max(1.0, (time.monotonic() - since) / IDLE_S)


def patience(seconds: float) -> float:
    """Return the limit of a wait that takes at most `seconds` on an idle machine."""
    return seconds * PATIENCE * float(os.environ.get(SLOWNESS, "1"))


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Wait until a condition is true.

    Args:
        condition: Asked every 20 ms.
        what: What is waited for, for the message of the assertion.
        seconds: How long it may take on an idle machine.
    """
    deadline = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience(seconds):.0f} s: {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def many_open_files() -> Iterator[None]:
    """Have all files that are opened meanwhile get descriptors of 1024 and above."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        while (opened := os.open(os.devnull, os.O_RDONLY)) < 1024:
            stack.callback(os.close, opened)
        os.close(opened)
        yield


def full_pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a pipe that takes nothing more until someone reads."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 512)
    os.set_blocking(write, True)
    return read, write


def read_proc(pid: int, name: str) -> bytes:
    """Return the content of /proc/PID/NAME; empty where the process has ended or is not ours to read."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def free_port() -> int:
    """Return a TCP port on which nothing listens and that no other worker is given.

    It is below the range from which the kernel takes ports for connections, so nothing takes it by chance either.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 20
    first = 20000 + worker * PORTS_PER_WORKER
    for _ in range(PORTS_PER_WORKER):
        port = first + next(_counter) % PORTS_PER_WORKER
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
    raise AssertionError(f"all ports from {first} to {first + PORTS_PER_WORKER - 1} are taken")
