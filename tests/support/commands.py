"""Start commands: as forks of a process that has imported what they import, or with a real exec."""

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

from mjtrain.launcher.ipc.signals import STOP_SIGNALS
from support.machine import patience
from support.warm_reaper import console_scripts, is_as_imported, replace_reaper

BIN = Path(sys.executable).parent

SIGNALS = (*STOP_SIGNALS, signal.SIGQUIT)
"""Those that a command may handle, and that whoever started the tests may ignore."""


class Forked:
    """A child of the warm parent, with what the tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, report: IO[bytes]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._report = report
        self._ended = threading.Lock()

    def poll(self) -> int | None:
        """Return the status if the process has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the status, -N after signal N."""
        with self._ended:
            if self.returncode is None:
                if not select.select([self._report], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
                with self._report:
                    self.returncode = int(self._report.readline())
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Signal the process, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)


Process = Forked | subprocess.Popen[Any]


def start(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    environ: Mapping[str, str],
    stdout: IO[Any],
    stderr: IO[Any],
    ignored: Sequence[signal.Signals] = (),
    host: int | None = None,
    exec_it: bool = False,
) -> Process:
    """Start a command in a new session, with the default signal dispositions whatever this process ignores.

    Args:
        command: A console script of ours, or `python` with -m, -c or a file, and arguments. Others are executed.
        cwd: Its working directory.
        environ: Its environment, whole.
        stdout: Where its standard output goes.
        stderr: Where its standard error goes.
        ignored: Signals that it begins with ignored.
        host: A process whose network, host name and mounts it gets.
        exec_it: Execute the command in a process that has imported nothing.
    """
    words = [str(word) for word in command]
    program = None if exec_it else _find_program(words)
    if program is None or not _is_as_imported(environ):
        enter = [] if host is None else ["nsenter", f"-t{host}", "--net", "--uts", "--mount", f"--wd={cwd}", "--"]
        dispositions = [f"--default-signal={_names(SIGNALS)}", f"--ignore-signal={_names(ignored)}"]
        return subprocess.Popen(
            [*enter, "env", *dispositions[: 2 if ignored else 1], *words],
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    request = program | {
        "adopted": False,
        "options": [],
        "words": words,
        "numbers": [0, 1, 2],
        "cwd": str(cwd.resolve()),
        "environ": dict(environ),
        "ignored": [int(signum) for signum in ignored],
        "host": host,
    }
    read, write = os.pipe()
    with Path(os.devnull).open() as stdin:
        descriptors = [stdin.fileno(), stdout.fileno(), stderr.fileno(), write]
        socket.send_fds(_warm_parent(), [json.dumps(request).encode()], descriptors)
    os.close(write)
    report = os.fdopen(read, "rb", buffering=0)
    return Forked(int(report.readline()), report)


def _names(signals: Sequence[signal.Signals]) -> str:
    return ",".join(signum.name.removeprefix("SIG") for signum in signals)


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    seconds: float = 60.0,
    exec_it: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end.

    Args:
        command: As of `start`.
        cwd: Its working directory; by default that of this process.
        environ: Variables beside those of this process.
        seconds: How long it may take on an idle machine.
        exec_it: As of `start`.
    """
    environ = os.environ | (environ or {})
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = start(command, cwd=cwd or Path.cwd(), environ=environ, stdout=stdout, stderr=stderr, exec_it=exec_it)
        try:
            status = process.wait(patience(seconds))
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess([*command], status, stdout.read(), stderr.read())


@cache
def _warm_parent() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(_address()))
        listener.listen()
        descriptors = [theirs.fileno(), listener.fileno()]
        command = [sys.executable, "-m", "support.warm_parent", *map(str, descriptors)]
        subprocess.Popen(command, pass_fds=descriptors, cwd=Path(__file__).parents[1])
    _at_start.update(os.environ)
    return ours


@cache
def _address() -> Path:
    folder = tempfile.mkdtemp(prefix="mjtrain-warm-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder, "socket")


def warm_parent_address() -> Path:
    """Where this worker's warm parent listens for requests of processes that it has not started."""
    _warm_parent()
    return _address()


_at_start: dict[str, str] = {}


def fork_reapers() -> None:
    """Have launchers in this process, too, get their reapers from the warm parent."""
    replace_reaper(_warm_parent, _at_start)


def _is_as_imported(environ: Mapping[str, str]) -> bool:
    """Whether a fork of the warm parent behaves as a process that is started with these variables."""
    _warm_parent()
    return is_as_imported(environ, _at_start)


def _find_program(words: list[str]) -> dict[str, Any] | None:
    """Say in the warm parent's terms what a command runs; None if it cannot be run by a fork."""
    path = Path(words[0])
    if path.parent == BIN and path.name in console_scripts():
        return {"program": ["function", *words], "function": console_scripts()[path.name]}
    if words[0] != sys.executable or len(words) == 1:
        return None
    if words[1] in ("-m", "-c"):
        return {"program": words[1:]}
    return {"program": ["file", *words[1:]]} if words[1].endswith(".py") else None
