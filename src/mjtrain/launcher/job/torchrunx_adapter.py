"""torchrunx as the spawner runs it, and all that is replaced inside torchrunx 0.4.

torchrunx decides which process starts which, carries the function to the ranks, and waits for them. What it would do
over the network of this host, or write to the console, is replaced: nothing listens, no name is resolved, no line of
output is pickled.

| name | becomes | why | upstream hook that would remove it |
|---|---|---|---|
| `launcher.build_launch_command` | arguments | no shell command is needed | `Launcher(start_agent=...)` |
| `launcher.execute_command` | a fork | a new interpreter imports torch again | `Launcher(start_agent=...)` |
| `launcher.socket`, `agent.socket` | 127.0.0.1 | a host may have no name | `Launcher(store=...)` |
| `launcher.`, `agent.get_open_port` | 0 | nothing listens | `Launcher(store=...)` |
| `utils.comm.dist` | a `FileStore` | other users can connect to a `TCPStore` | `Launcher(store=...)` |
| `agent.dist_mp` | `_RankProcesses` | forks; torch ends all ranks when one fails | `Launcher(start_ranks=...)` |
| `agent.tempfile` | the job's folder | it would leave empty folders in /tmp | `Launcher(start_ranks=...)` |
| `agent.`, `worker.log_records_to_socket` | - | the launcher has the streams | `Launcher(redirect=False)` |
| `agent.`, `worker.redirect_stdio_to_logger` | - | the launcher has the streams | `Launcher(redirect=False)` |
| `launcher.Event` | `threading.Event` | the other needs a writable /dev/shm | `Launcher(redirect=False)` |
| the process that receives log records | it sleeps | none are sent | `Launcher(redirect=False)` |

torchrunx 0.4 has none of these hooks; their names are suggestions.
"""

import atexit
import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import torch.distributed as dist
import torchrunx
import torchrunx.agent
import torchrunx.launcher
import torchrunx.utils.comm
import torchrunx.worker

from mjtrain.launcher.ipc.messages import Sender, connect
from mjtrain.launcher.planning.plan import LaunchPlan
from mjtrain.launcher.rank.spawned import run_rank
from mjtrain.runtime.processes import die_with_parent
from mjtrain.runtime.standard_streams import flush_standard_streams

_LOOPBACK = SimpleNamespace(getfqdn=lambda: "127.0.0.1")


def run_ranks(plan: LaunchPlan, payload: bytes, scratch: Path) -> None:
    """Run the ranks of this host, in forks of this process, and wait for them."""
    _replace_in_launcher(scratch, num_ranks=len(plan.ranks))
    launcher = torchrunx.Launcher(
        hostnames=["localhost"],
        workers_per_host=len(plan.ranks),
        backend=None,  # the ranks own their process group
        copy_env_vars=(),  # a fork has the environment already
    ).set_logging_handlers(partial(_serve_no_logs, os.getpid()))
    launcher.run(run_rank, plan, scratch, payload)


def _replace_in_launcher(scratch: Path, num_ranks: int) -> None:
    def execute(command: dict[str, Any] | str, hostname: str, **_: Any) -> None:
        if isinstance(command, str):
            return  # "kill PID" at the end: the reaper does that
        spawner = os.getpid()
        if os.fork() == 0:
            _run_agent(spawner, scratch, num_ranks, hostname=hostname, **command)

    def meet(world_size: int, **_: Any) -> Any:
        return dist.FileStore(str(scratch / "agents"), world_size)  # pyright: ignore[reportPrivateImportUsage]

    arguments = ("launcher_port", "world_size", "rank", "agent_timeout")  # of the agent
    store = SimpleNamespace(
        TCPStore=meet,
        init_process_group=dist.init_process_group,
        destroy_process_group=dist.destroy_process_group,
        all_gather_object=dist.all_gather_object,
    )
    _replace(
        torchrunx.launcher,
        build_launch_command=lambda **details: {name: details[name] for name in arguments},
        execute_command=execute,
        get_open_port=lambda: 0,
        socket=_LOOPBACK,
        Event=threading.Event,
    )
    _replace(torchrunx.utils.comm, dist=store)
    for module in (torchrunx.agent, torchrunx.worker):
        _replace(module, log_records_to_socket=lambda **_: None, redirect_stdio_to_logger=lambda _: None)


def _replace(module: ModuleType, **names: Any) -> None:
    """Replace what a module of torchrunx refers to, and make sure that it does refer to it."""
    for name, value in names.items():
        if not hasattr(module, name):
            raise ImportError(f"torchrunx {torchrunx.__version__} has no {module.__name__}.{name}: mjtrain needs 0.4")
        setattr(module, name, value)


def _serve_no_logs(parent: int) -> list[Any]:
    """Idle where torchrunx would listen for pickled log records."""
    die_with_parent(parent)
    while True:
        signal.pause()


def _run_agent(spawner: int, scratch: Path, num_ranks: int, *, hostname: str, **details: Any) -> NoReturn:
    """Be torchrunx's agent, in a process just forked from the spawner: fork the ranks, and report how each ended."""
    status = 1
    try:
        die_with_parent(spawner)
        # Now, while this process has one thread: a fork of several could inherit a lock that no thread releases.
        ranks = _RankProcesses(num_ranks, Sender(connect(scratch)))
        _replace(
            torchrunx.agent,
            get_open_port=lambda: 0,
            socket=_LOOPBACK,
            dist_mp=SimpleNamespace(start_processes=ranks.start, DefaultLogsSpecs=lambda **_: None),
            tempfile=SimpleNamespace(mkdtemp=lambda: str(scratch)),
        )
        torchrunx.agent.main(
            launcher_hostname="127.0.0.1", logger_hostname="127.0.0.1", logger_port=0, hostname=hostname, **details
        )
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        flush_standard_streams()
        os._exit(status)


class _RankProcesses:
    """The ranks of this host as torchrunx's agent sees them: something to start, to wait for and to close."""

    def __init__(self, num_ranks: int, sender: Sender) -> None:
        """Fork ranks that wait for their arguments, and watch them in a thread from then on.

        The thread does nothing else: what the agent does meanwhile, and the process that it talks to, cannot delay the
        report of how a rank ended.
        """
        context = multiprocessing.get_context("fork")
        pipes = [context.Pipe(duplex=False) for _ in range(num_ranks)]
        self._arguments = [theirs for _, theirs in pipes]
        processes = [context.Process(target=_be_rank, args=(os.getpid(), ours)) for ours, _ in pipes]
        for process in processes:
            process.start()
        self._pids = [process.pid for process in processes]
        self._exit_codes: dict[int, int] = {}
        self._all_ended = threading.Event()
        self._sender = sender
        self._sender.send("agent", pid=os.getpid(), rank_pids=self._pids)
        threading.Thread(target=self._watch, args=(processes,), name="mjtrain-wait", daemon=True).start()

    def _watch(self, processes: list[ForkProcess]) -> None:
        """Report each rank as soon as its process has ended. The ranks are the only children of this process."""
        for process in processes:
            if process.exitcode is not None:  # it ended while the others were forked
                self._report(process.pid, process.exitcode)
        while len(self._exit_codes) < len(processes):
            pid, status = os.waitpid(-1, 0)
            self._report(pid, os.waitstatus_to_exitcode(status))
        self._all_ended.set()

    def _report(self, pid: int | None, exit_code: int) -> None:
        self._exit_codes[self._pids.index(pid)] = exit_code
        with contextlib.suppress(OSError):  # the supervisor is gone
            self._sender.send("exit", pid=pid, exit_code=exit_code)

    def start(self, *, args: dict[int, tuple[bytes]], **_: Any) -> "_RankProcesses":
        for local_rank, connection in enumerate(self._arguments):
            connection.send_bytes(args[local_rank][0])
        return self

    def wait(self, timeout_s: float) -> SimpleNamespace | None:
        """Return how the ranks ended, in the shape of torch's `RunProcsResult`; None if one still runs after a while.

        A rank that has failed ends nothing here: the supervisor knows the cause, and ends the job.
        """
        if not self._all_ended.wait(timeout_s):
            return None
        failed = {
            local_rank: SimpleNamespace(message=f"exit code {exit_code}")
            for local_rank, exit_code in self._exit_codes.items()
            if exit_code != 0
        }
        return SimpleNamespace(return_values=dict.fromkeys(self._exit_codes), failures=failed)

    def close(self) -> None:
        """Do nothing: the reaper ends what is left when the agent ends."""


def _be_rank(agent: int, arguments: Connection) -> None:
    """Run what torchrunx runs in a rank, once the arguments have arrived."""
    die_with_parent(agent)
    serialized = arguments.recv_bytes()
    torchrunx.worker.worker_entrypoint(serialized)
    atexit._run_exitfuncs()  # as in a process that was started on its own; multiprocessing leaves them out
