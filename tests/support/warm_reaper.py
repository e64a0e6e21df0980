"""Start reapers as forks of a process that has imported what spawners and ranks import, and not by an exec.

So are agents of hosts, the ranks of torchrun and the trainings of `scaling`. All of them are then what they always are:
processes below the launcher that run the product's modules, with an environment, a session and streams of their own.
Only the imports have happened before.
"""

import contextlib
import ctypes
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from mjtrain.launcher.job import process_tree

_PR_SET_CHILD_SUBREAPER = 36

_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)

_READ_ON_IMPORT = re.compile(
    "__EGL|CUDA_(?!VISIBLE)|LANG|LC_|LD_|MKL_|MUJOCO|OMP_|OPENBLAS|PYTHON(?!PATH$)|TORCH_(?!DISABLE)|WARP"
)
"""Variables that Python or a library reads once, at its start: they cannot be changed for a fork.

JAX has not been imported before a fork, so its variables are not among them.
"""

_SET_LATER = frozenset({"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "TORCH_NCCL_ASYNC_ERROR_HANDLING"})
"""Those that a launcher sets: each rank says again how many threads it has, and the warm parent how they wait."""


def is_as_imported(
    environ: Mapping[str, str], imported: Mapping[str, str], *, besides: frozenset[str] = frozenset()
) -> bool:
    """Whether a fork behaves as a process that is started with these variables.

    Args:
        environ: The variables.
        imported: Those of the process that it is a fork of.
        besides: Names that may differ.
    """
    first, second = read_on_import(environ), read_on_import(imported)
    return all(first.get(name) == second.get(name) for name in {*first, *second} - besides)


def read_on_import(environ: Mapping[str, str]) -> dict[str, str]:
    """Of some variables, return those that a fork cannot change."""
    return {name: value for name, value in environ.items() if _READ_ON_IMPORT.match(name)}


class Adopted:
    """A child of this process that the warm parent has forked, with what is used of `subprocess.Popen`."""

    def __init__(self, pid: int, stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None) -> None:
        self.pid = pid
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the status if the process has ended."""
        if self.returncode is None:
            self._wait(os.WNOHANG)
        return self.returncode

    def _wait(self, options: int) -> None:
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:
            self.returncode = 0  # as Popen says, when something else has waited for it
        else:
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the status, -N after signal N."""
        if timeout is None and self.returncode is None:
            self._wait(0)
        deadline = time.monotonic() + (timeout or 0.0)
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Signal the process, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)


def replace_reaper(connect: Callable[[], socket.socket], imported: Mapping[str, str]) -> None:
    """Have the launcher in this process ask for its reapers.

    Args:
        connect: Returns the socket to a warm parent that this process has started.
        imported: The environment in which that has imported everything.
    """
    process_tree.__dict__["subprocess"] = SimpleNamespace(
        Popen=partial(_start, connect, imported), DEVNULL=subprocess.DEVNULL
    )


def replace_agents(connect: Callable[[], socket.socket], imported: Mapping[str, str]) -> None:
    """Have the launcher ask for its agents on this host too, torchrun for ranks, and `scaling` for trainings."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    from mjtrain.launcher.multinode import transport
    from mjtrain.tools import scaling

    popen = partial(_start, connect, imported)
    for module in (transport, scaling):
        module.__dict__["subprocess"] = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
    subprocess_handler.__dict__["Popen"] = popen


def _start(
    connect: Callable[[], socket.socket],
    imported: Mapping[str, str],
    args: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    stdin: IO[bytes] | int | None = None,
    stdout: IO[bytes] | int | None = None,
    stderr: IO[bytes] | int | None = None,
    start_new_session: bool = True,
) -> Any:
    """Start a program of mjtrain as `subprocess.Popen` does, but as a fork where a fork behaves like it."""
    environ = dict(os.environ if env is None else env)
    program = _find_program(args)
    server = connect() if program else None  # the first call fills `imported`
    if server is not None and is_as_imported(environ, imported, besides=_SET_LATER):
        streams = [_open(stream, number) for number, stream in enumerate((stdin, stdout, stderr))]
        pid = _ask(server, program | {"words": args}, environ, [theirs for theirs, _ in streams], pass_fds)
        for theirs, ours in streams:
            if ours is not None:
                os.close(theirs)
        if pid != 0:
            return Adopted(pid, streams[0][1], streams[1][1])
        for _, ours in streams:
            if ours is not None:
                ours.close()
    return subprocess.Popen(
        args,
        env=environ,
        pass_fds=pass_fds,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=start_new_session,
    )


def _find_program(words: Sequence[str]) -> dict[str, Any]:
    """Say in the warm parent's terms what a command runs; nothing if it cannot be run by a fork."""
    options = [word for word in words[1:3] if word in ("-P", "-u")]
    python, program = words[0], [*words[1 + len(options) :]]
    if python == sys.executable and program[:1] == ["-m"]:
        return {"program": program, "options": options}
    name = Path(program[0]).name if python == sys.executable and program else ""
    if name in console_scripts() and Path(program[0]).parent == Path(sys.executable).parent:
        return {"program": ["function", *program], "function": console_scripts()[name], "options": options}
    return {}


@cache
def console_scripts() -> dict[str, str]:
    """The functions that the commands of mjtrain run, by the names of the commands."""
    return {entry.name: entry.value for entry in entry_points(group="console_scripts") if "mjtrain" in entry.value}


def _open(stream: IO[bytes] | int | None, number: int) -> tuple[int, IO[bytes] | None]:
    """Return a descriptor for the child, and this process's end of it if that has to close both."""
    if stream == subprocess.PIPE:
        read, write = os.pipe()
        return (read, os.fdopen(write, "wb", 0)) if number == 0 else (write, os.fdopen(read, "rb", 0))
    if stream == subprocess.DEVNULL:
        nothing = Path(os.devnull).open("rb")  # noqa: SIM115
        return os.dup(nothing.fileno()), nothing
    return (number if stream is None else stream if isinstance(stream, int) else stream.fileno()), None


def _ask(
    server: socket.socket,
    program: Mapping[str, Any],
    environ: Mapping[str, str],
    streams: Sequence[int],
    inherited: Sequence[int],
) -> int:
    """Return the process id of a new process, which is a child of this process; 0 where none can be forked."""
    request = {
        **program,
        "adopted": True,
        "numbers": [0, 1, 2, *inherited],
        "cwd": str(Path.cwd()),
        "environ": dict(environ),
        "ignored": [int(signum) for signum in signal.valid_signals() if signal.getsignal(signum) == signal.SIG_IGN],
        "host": None,
        "umask": _umask(),
        "cores": [*os.sched_getaffinity(0)],
        "limits": {kind: resource.getrlimit(kind) for kind in _LIMITS},
    }
    read, write = os.pipe()
    with os.fdopen(read, "rb") as report, _adopting():
        socket.send_fds(server, [json.dumps(request).encode()], [*streams, *inherited, write])
        os.close(write)
        return int(report.read())  # the process is the last to close it, once it is a child of this process


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Become the parent of a process that loses its own."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
