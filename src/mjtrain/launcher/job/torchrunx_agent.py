"""torchrunx's agent on this host: forks the ranks, hands them their arguments, and says how each of them ended."""

import atexit
import multiprocessing
import multiprocessing.connection
import os
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from mjtrain.launcher.ipc.messages import Sender, connect
from mjtrain.launcher.ipc.processes import die_with_parent


def run_agent(starter: int, scratch: Path, num_ranks: int, *, hostname: str, **details: Any) -> NoReturn:
    """Be the agent, in a process just forked from the starter, and never return.

    Args:
        starter: Process id of the starter.
        scratch: The job's folder, where the launcher listens.
        num_ranks: Ranks on this host.
        hostname: What torchrunx calls this host.
        **details: What torchrunx tells its agent.
    """
    import torchrunx.agent

    status = 1
    try:
        die_with_parent(starter)
        # Now, while this process has one thread: a fork of several threads could inherit a lock that nobody opens.
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
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class _RankProcesses:
    """The ranks of this host as torchrunx's agent sees them: something to start, to wait for and to close."""

    def __init__(self, num_ranks: int, speaker: Sender) -> None:
        """Fork ranks that wait for their arguments."""
        context = multiprocessing.get_context("fork")
        pipes = [context.Pipe(duplex=False) for _ in range(num_ranks)]
        self._arguments = [theirs for _, theirs in pipes]
        self._processes = [context.Process(target=_be_rank, args=(os.getpid(), ours)) for ours, _ in pipes]
        for process in self._processes:
            process.start()
        self._exit_codes: dict[int, int] = {}
        self._speaker = speaker
        self._speaker.send("agent", pid=os.getpid(), rank_pids=[process.pid for process in self._processes])

    def start(self, *, args: dict[int, tuple[bytes]], **_: Any) -> "_RankProcesses":
        """Let the ranks run."""
        for local_rank, connection in enumerate(self._arguments):
            connection.send_bytes(args[local_rank][0])
        return self

    def wait(self, timeout_s: float) -> SimpleNamespace | None:
        """Return how the ranks ended, in the shape of torch's `RunProcsResult`; None if one still runs after a while.

        That one has failed ends nothing here: the launcher knows why, and ends the job.
        """
        deadline_s = time.monotonic() + timeout_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            for local_rank, process in enumerate(self._processes):
                if local_rank not in self._exit_codes and process.exitcode is not None:
                    self._exit_codes[local_rank] = process.exitcode
                    self._speaker.send("exit", pid=process.pid, exit_code=process.exitcode)
            running = [process.sentinel for process in self._processes if process.exitcode is None]
            if not running and len(self._exit_codes) == len(self._processes):
                failed = {
                    local_rank: SimpleNamespace(message=f"exit code {exit_code}")
                    for local_rank, exit_code in self._exit_codes.items()
                    if exit_code != 0
                }
                return SimpleNamespace(return_values=dict.fromkeys(self._exit_codes), failures=failed)
            if running:  # else the last has ended since the look above
                multiprocessing.connection.wait(running, left_s)
        return None

    def close(self) -> None:
        """Do nothing: whoever is left when the agent ends is ended by the keeper."""


def _be_rank(agent: int, arguments: Connection) -> None:
    """Run what torchrunx runs in a rank, once the arguments have come."""
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
