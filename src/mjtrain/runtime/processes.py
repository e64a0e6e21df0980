"""Processes and their descendants, as Linux shows them: which descend from which, belong to a job, or end together.

Also how process 1 of a container ends by signals.
"""

import contextlib
import ctypes
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

JOB_VARIABLE = "MJTRAIN_JOB"
"""Environment variable that names the job a process belongs to; whatever a rank starts inherits it."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 0x4

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals that would end any process other than process 1; Python handles SIGINT itself."""


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent, a process id, ends, which may have happened already."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, those included that went to the background.

    A process that has done so and has no children left therefore has no descendants left.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def read_stat(process: int | str) -> list[str]:
    """Return the fields of /proc/{process}/stat from the state on; raises an OSError if the process is gone."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def list_descendants(ancestor: int) -> list[int]:
    """Return the process ids of all living descendants; zombies are not alive."""
    children: dict[int, list[int]] = {}
    for pid in _all_pids():
        with contextlib.suppress(OSError):
            state, parent = read_stat(pid)[:2]
            children.setdefault(int(parent), []).append(pid if state not in "ZX" else -pid)
    found, queue = [], [ancestor]
    while queue:
        below = children.get(queue.pop(), [])
        found += [pid for pid in below if pid > 0]
        queue += [abs(pid) for pid in below]
    return found


def ancestor_commands() -> Iterator[list[str]]:
    """Yield the command lines of the processes above this one, the nearest first."""
    pid = os.getppid()
    with contextlib.suppress(OSError):  # it has ended meanwhile, or is not visible in this container
        while pid > 0:
            yield Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            pid = int(read_stat(pid)[1])


def list_job_processes(job_id: str) -> list[int]:
    """Return the process ids of all living processes that carry a job's id in their environment."""
    entry = f"{JOB_VARIABLE}={job_id}".encode()
    found = []
    for pid in _all_pids():
        with contextlib.suppress(OSError):
            if entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def is_ending(pid: int) -> bool:
    """Whether a process has ended or is about to: the kernel is taking it down, so no code of it runs any more.

    This holds before any of its sockets is closed. What hears of a process through a connection that breaks therefore
    finds out here whether the process itself has ended.
    """
    try:
        fields = read_stat(pid)
    except OSError:
        return True
    return fields[0] in "ZX" or bool(int(fields[6]) & _PF_EXITING)


def read_exit_code(pid: int) -> int | None:
    """Return how a process ended that its parent has not waited for: its status, or minus the signal that killed it.

    None where it runs, is gone, or may not be looked at.
    """
    try:
        fields = read_stat(pid)
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int(fields[-1])) if fields[0] == "Z" else None


def module_path() -> str:
    """Return a PYTHONPATH with which `sys.executable -P` finds the modules that this process finds, in the same order.

    It leaves out the end of `sys.path` that this interpreter finds by itself: what a rank starts inherits the variable,
    and another Python fails with the standard library of this one.
    """
    paths, found = [path or str(Path.cwd()) for path in sys.path], _find_default_path()
    for number in range(len(paths)):
        if paths[number:] == [path for path in found if path not in paths[:number]]:
            return os.pathsep.join(paths[:number])
    return os.pathsep.join(paths)  # something was added at the end, or this interpreter began with other flags


@functools.cache
def _find_default_path() -> list[str]:
    """Return the `sys.path` of `sys.executable -P` without a PYTHONPATH; empty where that does not start."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", "-c", "import json, sys; print(json.dumps(sys.path))"]
    with contextlib.suppress(OSError, subprocess.CalledProcessError, ValueError, IndexError):
        output = subprocess.check_output(command, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads(output.splitlines()[-1])  # a sitecustomize may print
    return []


def send_signal(pids: Iterable[int], signum: int) -> None:
    """Signal processes; those that are gone, or are not ours to signal, are left out."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def signal_main_threads(pids: Iterable[int], signum: int) -> None:
    """Signal the main thread of processes, which handles it before it does anything else when it continues."""
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)  # of glibc 2.30
    if tgkill is None:
        send_signal(pids, signum)
        return
    for pid in pids:
        tgkill(pid, pid, int(signum))  # what is gone, or is not ours, gives an error code


def _all_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def obey_signals_as_process_1() -> None:
    """Have signals end this process, if it is process 1, as they would end any other.

    The kernel delivers to it no signal that it has no handler for. To be called before the imports that take seconds.
    Otherwise the SIGTERM with which a container is stopped while it starts is lost, and SIGKILL follows. What handles a
    signal already stays.
    """
    if os.getpid() != 1 or threading.current_thread() is not threading.main_thread():
        return
    for signum in _ENDING:
        if signal.getsignal(signum) == signal.SIG_DFL:
            signal.signal(signum, lambda number, _: os._exit(128 + number))
