"""A process that has imported what commands import, and forks a child for each command it is asked to run.

Run as `python warm_parent.py DESCRIPTOR`, with a SOCK_SEQPACKET socket to the process that asks. It has a single thread
when it forks. `support.commands` starts one per test worker. A child becomes what
`python` would be after an exec: its own streams, folder, environment, signal dispositions and session, and it ends as
an interpreter ends. The product's spawner makes ranks in the same way.
"""

import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

PRELOAD = (
    "mjtrain",  # before torch, as in a command: it says how torch's threads wait
    "torch",
    "mujoco",
    "warp",
    "torch.utils.tensorboard",
    "mjtrain.api",
    "mjtrain.sim.engines.native",
    "mjtrain.training.preflight.dry_step",
    "mjtrain.training.request",
    "mjtrain.learning.rsl_rl.construct",
    "mjtrain.training.train_rank",
    "mjtrain.runtime.worker",
    "mjtrain.cli.train",
    "mjtrain.cli.play",
)
"""None of them starts a thread, nor imports Triton, which complains at the end of an interpreter."""

NUM_DESCRIPTORS = 4
"""Standard input, output and error of the child, and the pipe in which its process id and its status are reported."""


def main() -> Callable[[], None]:
    """Serve until the other end of the socket closes.

    Returns:
        In a child: what it shall run.
    """
    requests = socket.socket(fileno=int(sys.argv[1]))
    before = dict(os.environ)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy starts threads when it is imported
    for module in PRELOAD:
        importlib.import_module(module)
    os.environ.clear()
    os.environ.update(before)
    num_threads = len(list(Path("/proc/self/task").iterdir()))
    assert num_threads == 1, f"{num_threads} threads after the imports: a fork would lose all but one of them"
    gc.collect()
    gc.freeze()
    reports: dict[int, int] = {}
    woken, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([requests, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            _report_ended(reports)
        if requests in readable:
            message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, NUM_DESCRIPTORS)
            if not message:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                return _become(json.loads(message), descriptors)
            report = descriptors.pop()
            for descriptor in descriptors:
                os.close(descriptor)
            reports[pid] = report
            os.write(report, f"{pid}\n".encode())


def _report_ended(reports: dict[int, int]) -> None:
    """Write the status of each child that has ended into its pipe."""
    while reports:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        report = reports.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(report, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os.close(report)


def _become(request: dict[str, Any], descriptors: list[int]) -> Callable[[], None]:
    """Turn this fork into the process that was asked for; return what it runs."""
    os.setsid()
    if request["host"] is not None:
        _enter_namespaces(request["host"])
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGINT}:
        with contextlib.suppress(OSError):  # two that the C library keeps for itself
            signal.signal(signum, signal.SIG_IGN if signum in request["ignored"] else signal.SIG_DFL)
    ignored = signal.SIGINT in request["ignored"]
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    for descriptor, source in enumerate(descriptors[:3]):
        os.dup2(source, descriptor)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(request["cwd"])
    importlib.invalidate_caches()
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), line_buffering=os.isatty(1))
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), errors="backslashreplace", line_buffering=True
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.path[:] = [path for path in request["environ"].get("PYTHONPATH", "").split(os.pathsep) if path] + sys.path[1:]
    kind, *words = request["program"]
    if kind == "-m":
        sys.path.insert(0, request["cwd"])
        return lambda: _run_module(words)
    sys.argv = words
    if kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *words[1:]]
        return lambda: _run_source(words[0], "<string>")
    if kind == "function":
        sys.path.insert(0, str(Path(words[0]).parent))
        module, _, name = request["function"].partition(":")
        return lambda: sys.exit(getattr(importlib.import_module(module), name)())
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    return lambda: _run_source(Path(words[0]).read_bytes(), words[0])


def _enter_namespaces(pid: int) -> None:
    """Get the network, the host name and the mounts of another process."""
    libc = ctypes.CDLL(None, use_errno=True)
    for kind in ("net", "uts", "mnt"):
        descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
        if libc.setns(descriptor, 0) != 0:
            raise OSError(ctypes.get_errno(), f"setns({kind})")


def _run_module(words: list[str]) -> None:
    sys.argv = words
    sys.modules.pop(words[0], None)
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


def _run_source(source: str | bytes, path: str) -> None:
    """Run a program as the module __main__, which stays that until the end of the process."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=__builtins__)
    if isinstance(source, str):
        del module.__file__
    sys.modules["__main__"] = module
    exec(compile(source, path, "exec"), module.__dict__)


if __name__ == "__main__":
    main()()
