"""torchrunx's agent on this host: forks the ranks, hands them their arguments, and reports how each of them ended."""

import atexit
import contextlib
import multiprocessing
import os
import threading
import traceback
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from mjtrain.launcher.ipc.messages import Sender, connect
from mjtrain.runtime.processes import die_with_parent
from mjtrain.runtime.standard_streams import flush_standard_streams


def run_agent(spawner: int, scratch: Path, num_ranks: int, *, hostname: str, **details: Any) -> NoReturn:
    """Be the agent, in a process just forked from the spawner, and never return.

    Args:
        spawner: Process id of the spawner.
        scratch: The job's folder, where the supervisor listens.
        num_ranks: Ranks on this host.
        hostname: What torchrunx calls this host.
        **details: What torchrunx tells its agent.
    """
    import torchrunx.agent

    status = 1
    try:
        die_with_parent(spawner)
        # Now, while this process has one thread: a fork of several could inherit a lock that no thread releases.
        ranks = _RankProcesses(num_ranks, Sender(connect(scratch)))
        replace_names(
            torchrunx.agent,
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
        """Let the ranks run."""
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
    from torchrunx.worker import worker_entrypoint

    worker_entrypoint(serialized)
    atexit._run_exitfuncs()  # as in a process that was started on its own; multiprocessing leaves them out


def replace_names(module: ModuleType, **names: Any) -> None:
    """Replace what a module of torchrunx refers to, and make sure that it does refer to it."""
    for name, value in names.items():
        if not hasattr(module, name):
            import torchrunx

            raise ImportError(f"torchrunx {torchrunx.__version__} has no {module.__name__}.{name}: mjtrain needs 0.4")
        setattr(module, name, value)
