"""A process that has imported what commands import, and forks a child for each command it is asked to run.

Run as `python -m support.warm_parent REQUESTS LISTENER`: a SOCK_SEQPACKET socket to the process that asks, and one to
which others connect for a request each, such as what sshd starts (`support.ssh_command`). It has a single thread when
it forks. `support.commands` starts one per test worker. A child becomes what `python` would be after an exec: its own
streams, folder, environment, signal dispositions and session. It ends as an interpreter ends: threads are waited for,
exit handlers run, and streams are flushed. The product's spawner makes ranks in the same way.

The reapers of a command, or of the test worker, are forks as well (`support.warm_reaper`), as are agents on its host,
the ranks of torchrun and the trainings of `scaling`. Spawners are forks of the reapers. A command has several threads
when it starts one, so it forks a process that serves these requests first.
"""

import atexit
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
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from support.become import enter_namespaces, move, reset_signals, show, take_limits

PRELOAD = (
    "mjtrain",  # before torch, as in a command: it says how torch's threads wait
    "torch",
    "mujoco",
    "warp",
    "mujoco_warp",  # seconds, in each training with cameras or on Warp; it does not start Warp, which sees GPUs
    "torch.utils.tensorboard",
    "mjtrain.api",
    "mjtrain.sim.engines.native",
    "mjtrain.training.preflight.dry_step",
    "mjtrain.training.request",
    "mjtrain.learning.rsl_rl.construct",
    "mjtrain.training.train_rank",
    "mjtrain.runtime.worker",
    "mjtrain.launcher.job.reaper",
    "mjtrain.launcher.job.spawner",
    "mjtrain.launcher.job.torchrunx_adapter",
    "mjtrain.launcher.rank.spawned",
    "mjtrain.launcher.spawn",
    "mjtrain.cli.train",
    "mjtrain.cli.play",
    "torchrunx",
    "torch.distributed.run",
    "mjtrain.launcher.multinode.node_agent",
    "mjtrain.tools.scaling",
    "typeguard",  # tyro does so when it first reads a config
    "support.warm_reaper",
)
"""None of them starts a thread, nor imports Triton, which complains at the end of an interpreter."""

MAX_DESCRIPTORS = 16
"""Those of the child, and the pipe in which its process id and its status are reported."""

_REAPER = "mjtrain.launcher.job.reaper"
_SPAWNER = ["-P", "-m", "mjtrain.launcher.job.spawner"]
_START_TRAIN = "mjtrain.tools.start_train"
_TRIAL = ["-P", "-m", _START_TRAIN]

_PR_SET_PDEATHSIG = 1

Program = Callable[[], "Program | None"]
"""What a process runs; it may return what it runs then, in a fork for instance."""


class Forked(BaseException):
    """Raised in a new process to leave the stack of the process that it is a fork of."""

    def __init__(self, program: Program) -> None:
        self.program = program


def main() -> Program:
    """Import everything; return the server."""
    requests, listener = (socket.socket(fileno=int(word)) for word in sys.argv[1:])
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
    return partial(_serve, requests, before, sys.path[1:], can_show=show(sys.orig_argv, before), listener=listener)


def _serve(
    requests: socket.socket,
    imported: Mapping[str, str],
    path: Sequence[str],
    *,
    can_show: bool,
    listener: socket.socket | None = None,
) -> Program:
    """Serve until the other end of the socket closes.

    Args:
        requests: The socket.
        imported: The environment in which the modules were imported.
        path: Where modules are found, besides PYTHONPATH.
        can_show: Whether /proc can show a fork as what it becomes.
        listener: Where others connect for a request each, such as what sshd has started.

    Returns:
        In a child: what it runs.
    """
    sockets = [requests] if listener is None else [requests, listener]
    reports: dict[int, int] = {}
    woken, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([*sockets, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            _report_ended(reports)
        for ready in [place for place in sockets if place in readable]:
            with contextlib.ExitStack() as stack:
                source = ready if ready is requests else stack.enter_context(ready.accept()[0])
                message, descriptors, _, _ = socket.recv_fds(source, 1 << 20, MAX_DESCRIPTORS)
            if not message and ready is requests:
                os._exit(0)
            if not message:
                continue
            request, report = json.loads(message), descriptors[-1]
            become = partial(_become, request, descriptors[:-1], imported, path, can_show=can_show)
            if not request["adopted"]:
                pid = os.fork()
                if pid == 0:
                    return become
                reports[pid] = os.dup(report)
                os.write(report, f"{pid}\n".encode())
            elif not can_show:  # its processes could not be told from others by their environment
                os.write(report, b"0\n")
            elif _fork_an_orphan(report):
                return become
            for descriptor in descriptors:
                os.close(descriptor)


def _fork_an_orphan(report: int) -> bool:
    """Fork a process whose parent ends, so that the process above that adopts it; return whether this is the fork."""
    between = os.fork()
    if between != 0:
        os.waitpid(between, 0)
        return False
    parent, pid = os.getpid(), os.fork()
    if pid != 0:
        os.write(report, f"{pid}\n".encode())
        os._exit(0)
    while os.getppid() == parent:
        time.sleep(0.001)
    return True


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


def _become(
    request: dict[str, Any],
    descriptors: list[int],
    imported: Mapping[str, str],
    path: Sequence[str],
    *,
    can_show: bool,
) -> Program | None:
    """Turn this fork into the process that was asked for, and run it."""
    os.setsid()
    if request["host"] is not None:
        enter_namespaces(request["host"])
    reset_signals(request["ignored"])
    move(descriptors, request["numbers"])
    if request["adopted"]:
        take_limits(request)
    os.chdir(request["cwd"])
    importlib.invalidate_caches()
    os.environ.clear()
    os.environ.update(request["environ"])
    if can_show:
        show(request["words"], request["environ"])
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    raw, unbuffered = io.FileIO(1, "w", closefd=False), "-u" in request["options"]
    sys.stdout = io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),  # type: ignore[arg-type] # as the interpreter does it
        line_buffering=os.isatty(1),
        write_through=unbuffered,
    )
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), errors="backslashreplace", line_buffering=True
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.path[:] = [entry for entry in request["environ"].get("PYTHONPATH", "").split(os.pathsep) if entry] + [*path]
    if request["program"][1] == _REAPER:
        return _run_reaper(request["program"][1:], imported, path)
    if request["program"][1] == _START_TRAIN:
        return _start_train(request["program"][1:], imported, path)
    requests = _start_server(imported)
    if requests is not None:
        return _serve(requests, imported, path, can_show=can_show)
    kind, *words = request["program"]
    if kind == "-m":
        if "-P" not in request["options"]:
            sys.path.insert(0, request["cwd"])
        return _run_module(words)
    sys.argv = words
    if kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *words[1:]]
        return _run_source(words[0], "<string>")
    if kind == "function":
        sys.path.insert(0, str(Path(words[0]).parent))
        module, _, name = request["function"].partition(":")
        sys.exit(getattr(importlib.import_module(module), name)())
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    return _run_source(Path(words[0]).read_bytes(), words[0])


def _start_server(imported: Mapping[str, str]) -> socket.socket | None:
    """Fork the process from which this one gets its reapers; return, there, the socket with the requests."""
    from support.warm_reaper import replace_agents, replace_reaper

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    parent = os.getpid()
    if os.fork() != 0:
        theirs.close()
        replace_reaper(lambda: ours, imported)
        replace_agents(lambda: ours, imported)
        return None
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
    os.setsid()
    ours.close()
    show(sys.orig_argv, {})  # not a process of the command; it ends with it
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.close(nothing)
    return theirs


def _run_reaper(words: list[str], imported: Mapping[str, str], path: Sequence[str]) -> None:
    """Be a reaper whose spawner, or whose trial of a sweep, is a fork of it; what else it starts is executed."""
    from mjtrain.launcher.job import reaper

    def start(command: list[str]) -> Any:
        if command[1:4] == _SPAWNER:
            return _Child(partial(_run_spawner, command))
        if command[1:4] == _TRIAL:
            return _Child(partial(_run_trial, command, imported, path))
        return subprocess.Popen(command)

    reaper.__dict__["subprocess"] = types.SimpleNamespace(Popen=start)
    sys.argv = words
    reaper.main()
    os._exit(0)  # it has nothing to save; taking down what it need not have imported would take long


class _Child:
    """A fork of the reaper, with what the reaper uses of `subprocess.Popen`."""

    def __init__(self, program: Program) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            raise Forked(program)


def _run_spawner(command: list[str]) -> None:
    _leave_reaper(command)
    _run_module(command[3:])


def _run_trial(command: list[str], imported: Mapping[str, str], path: Sequence[str]) -> Program | None:
    _leave_reaper(command)
    return _start_train(command[3:], imported, path)


def _start_train(words: list[str], imported: Mapping[str, str], path: Sequence[str]) -> Program | None:
    """Start a training of a tool, and become the command train where it would be executed."""

    def execute(_: str, words: list[str]) -> NoReturn:
        raise Forked(partial(_run_train, words, imported, path))

    start = importlib.import_module(_START_TRAIN)
    start.__dict__["os"] = types.SimpleNamespace(**{**vars(os), "execv": execute})
    sys.argv = words
    start.main()
    raise AssertionError("it has not become the command train")


def _run_train(words: list[str], imported: Mapping[str, str], path: Sequence[str]) -> Program | None:
    show(words, os.environ)
    requests = _start_server(imported)
    if requests is not None:
        return _serve(requests, imported, path, can_show=True)
    return _run_module(words[3:])


def _leave_reaper(command: list[str]) -> None:
    """Have of the reaper only what a process has that it executes."""
    reset_signals([signum for signum in signal.valid_signals() if signal.getsignal(signum) == signal.SIG_IGN])
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    show(command, os.environ)


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


def _run(program: Program | None) -> None:
    while program is not None:
        try:
            program = program()
        except Forked as forked:
            program = forked.program


def _end(status: int) -> NoReturn:
    """End this process as an interpreter does, but do not take down one by one the objects that it has imported.

    That takes half a second of a core, and nothing can see it. Where streams cannot be flushed, the interpreter ends.
    """
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads that are not daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            sys.exit(status)
    os._exit(status)


def _run_to_end() -> NoReturn:
    try:
        _run(main())
    except SystemExit as stop:
        if stop.code is not None and not isinstance(stop.code, int):
            raise  # the interpreter prints it
        _end(stop.code or 0)
    _end(0)


if __name__ == "__main__":
    _run_to_end()
