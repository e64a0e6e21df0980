"""Start reapers as forks of a process that has imported what spawners and ranks import, and not by an exec.

Reaper, spawner and ranks are then what they always are: processes below the launcher that run the product's modules,
with an environment, a session and streams of their own. Only the imports have happened before.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from mjtrain.launcher.job import process_tree

_PR_SET_CHILD_SUBREAPER = 36

_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)

_READ_ON_IMPORT = re.compile(
    "__EGL|CUDA_(?!VISIBLE)|JAX|LANG|LC_|LD_|MKL_|MUJOCO|OMP_|OPENBLAS|PYTHON(?!PATH$)|TORCH_|WARP|XLA"
)
"""Variables that Python or a library reads once, at its start: they cannot be changed for a fork."""

_SET_BY_RANKS = frozenset({"OMP_NUM_THREADS", "OMP_WAIT_POLICY"})
"""Those that the launcher sets: each rank says again how many threads it has, and the warm parent how they wait."""


def is_as_imported(
    environ: Mapping[str, str], imported: Mapping[str, str], *, besides: frozenset[str] = frozenset()
) -> bool:
    """Whether a fork behaves as a process that is started with these variables.

    Args:
        environ: The variables.
        imported: Those of the process that it is a fork of.
        besides: Names that may differ.
    """
    names = {name for name in {*environ, *imported} if _READ_ON_IMPORT.match(name)} - besides
    return all(environ.get(name) == imported.get(name) for name in names)


class ReaperProcess:
    """A reaper, with what the launcher uses of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def kill(self) -> None:
        """End it with SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def replace_reaper(connect: Callable[[], socket.socket], imported: Mapping[str, str]) -> None:
    """Have the launcher in this process ask for its reapers.

    Args:
        connect: Returns the socket to a warm parent that this process has started.
        imported: The environment in which that has imported everything.
    """

    def start(command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> Any:
        server = connect()
        if is_as_imported(env, imported, besides=_SET_BY_RANKS):
            pid = _ask(server, command, env, options["stdout"], options["pass_fds"])
            if pid != 0:
                return ReaperProcess(pid)
        return subprocess.Popen(command, env=env, **options)

    names = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    process_tree.__dict__["subprocess"] = names


def _ask(
    server: socket.socket, command: Sequence[str], environ: Mapping[str, str], log: IO[bytes], inherited: Sequence[int]
) -> int:
    """Return the process id of a new reaper, which is a child of this process; 0 where none can be forked."""
    assert list(command[:3]) == [sys.executable, "-P", "-m"]
    request = {
        "adopted": True,
        "program": command[2:],
        "words": command,
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
    with Path(os.devnull).open() as stdin, os.fdopen(read, "rb") as report, _adopting():
        descriptors = [stdin.fileno(), log.fileno(), log.fileno(), *inherited, write]
        socket.send_fds(server, [json.dumps(request).encode()], descriptors)
        os.close(write)
        return int(report.read())  # the reaper is the last to close it, once it is a child of this process


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
