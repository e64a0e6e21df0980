"""The agent on one host of a job on several hosts: calls functions that look at the host, and runs its ranks.

Run as `python -m mjtrain.launcher.multinode.node_agent`, through ssh or srun, or directly on this host. Standard input
and output are the connection to the launcher; `mjtrain.launcher.ipc.messages` lists what the two say. When the
connection breaks, the job or the call ends.
"""

import contextlib
import importlib
import os
import pickle
import platform
import random
import signal
import socket
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mjtrain.launcher.failure import Failure, RunResult, send_result
from mjtrain.launcher.ipc.messages import HostConnection
from mjtrain.launcher.ipc.network import list_interfaces
from mjtrain.launcher.ipc.signals import STOP_SIGNALS
from mjtrain.launcher.job.spawner import Job
from mjtrain.launcher.spawn import run_host_job
from mjtrain.runtime.errors import RequestError, message_of
from mjtrain.runtime.machine import count_cores, count_gpus, installed_packages, is_writable

_FLUSH_S = 5.0
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_NUM_PORTS, _NUM_TRIES = 2000, 20


def main() -> None:
    """Serve the launcher at standard input and output."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, lambda *_: None)  # the launcher decides
    connection = HostConnection(os.dup(0), os.dup(1))
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    while not connection.lost and connection.explain_silence() is None:
        message, body = connection.await_message(1.0)
        connection.beat()
        if message["kind"] == "port":
            connection.send("port", port=find_free_port())
        elif message["kind"] == "call":
            os.environ.update(message["environ"])
            threading.Thread(target=_call, args=(connection, message), name="mjtrain-call", daemon=True).start()
        elif message["kind"] == "start":
            # Unpickling is safe: the other end could log in here as this user, or has started this process.
            os.environ.update(message["environ"])
            job: Job = pickle.loads(body)
            run_part(connection, job, os.environ, host=message["host"], log_dir=message["log_dir"])
    os._exit(0)


def _call(connection: HostConnection, message: dict[str, Any]) -> None:
    """Call a function in a thread, so that this process keeps in touch with the launcher."""
    module, _, name = message["function"].partition(":")
    try:
        for value in getattr(importlib.import_module(module), name)(**message["arguments"]):
            connection.send("value", value=value)
        connection.send("returned")
    except BaseException:
        connection.flush(_FLUSH_S)
        traceback.print_exc()  # the launcher shows its last line
        os._exit(1)


def describe_host(folder: str | None, *, with_gpus: bool, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield what this host has, whether a folder can be written, and the addresses of hosts. GPUs need torch."""
    yield {
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "packages": installed_packages(),
        "writable": folder is None or is_writable(Path(folder)),
        "num_gpus": count_gpus() if with_gpus else 0,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "num_cores": count_cores(),
        "interfaces": list_interfaces(),
        "connection": os.environ.get("SSH_CONNECTION", "").split(),
        "resolved": {name: _resolve(name) for name in names},
    }


def find_free_port() -> int:
    """Find a port at which nothing listens now; rank 0 will, some seconds later.

    It is below the range from which the kernel takes ports for connections, so that none of them takes it meanwhile.
    """
    try:
        first = int(_PORT_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):  # not Linux
        first = 0
    below = range(max(1024, first - _NUM_PORTS), first)
    for port in [*random.SystemRandom().sample(below, min(_NUM_TRIES, len(below))), 0]:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return probe.getsockname()[1]
    raise ConnectionError("no port of this host is free")


def _resolve(name: str) -> str | None:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return None


def run_part(
    connection: HostConnection, job: Job, environ: Mapping[str, str], *, host: str, log_dir: str | None
) -> RunResult:
    """Run the ranks of this host and report to the coordinator; when this returns, no process of them is left."""
    try:
        folder = _make_log_dir(connection, job, host, log_dir)
        result = run_host_job(job, folder, environ, host=host, connection=connection)
    except Exception as error:
        summary = str(error) if isinstance(error, RequestError) else f"{type(error).__name__}: {message_of(error)}"
        result = RunResult(failure=Failure(summary=summary, host=host, is_transient=False))
        send_result(connection, result)
    connection.send("gone")
    connection.flush(_FLUSH_S)
    return result


def _make_log_dir(connection: HostConnection, job: Job, host: str, log_dir: str | None) -> Path | None:
    """Make this host's folder of log files; None at a restart where that fails, as on a full disk."""
    if log_dir is None:
        return None
    try:
        Path(log_dir).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if job.plan.ranks[0].restarts == 0:
            raise
        problem = f"warning: host {host}: {log_dir} cannot be written ({error.strerror})"
        connection.send("output", f"{problem}; this start writes no log files there\n".encode(), stream="stderr")
        return None
    return Path(log_dir)


if __name__ == "__main__":
    main()
