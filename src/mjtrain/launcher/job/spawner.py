"""The spawner: a process that runs torchrunx.Launcher for a job on this host.

Run as `python -m mjtrain.launcher.job.spawner SCRATCH PARENT_PID`, below the reaper. It imports once what the ranks
need; the torchrunx agent and the ranks are forks of it, made before any thread has begun. torchrunx decides which
process starts which, carries the function to the ranks and waits for them. What it would do over the network of this
host, or write to the console, is replaced here: nothing listens, no name is resolved, no line of output is pickled.
"""

import importlib
import os
import pickle
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mjtrain.launcher.ipc.signals import STOP_SIGNALS
from mjtrain.launcher.planning.plan import LaunchPlan
from mjtrain.runtime.processes import die_with_parent
from mjtrain.runtime.standard_streams import flush_standard_streams

JOB_NAME = "job.pickle"
"""File in the job's folder that says what to start; only this user can write there."""

HOST = "localhost"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the launcher asks the spawner for."""

    plan: LaunchPlan
    """The ranks and where they run."""

    payload: bytes
    """The caller's function and arguments, pickled; only the ranks open it."""

    preload: tuple[str, ...]
    """Modules that the function will import."""


def main() -> None:
    """Start the job that the arguments name, and wait for it."""
    scratch, parent = Path(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    for signum in STOP_SIGNALS:
        signal.signal(signum, lambda *_: None)  # the launcher decides; not ignored, as programs would inherit that
    job: Job = pickle.loads((scratch / JOB_NAME).read_bytes())
    for module in ("mjtrain.runtime.worker", *job.preload):
        importlib.import_module(module)
    _run(job, scratch)
    flush_standard_streams()
    os._exit(0)  # taking down all that was imported would take seconds, with nothing in them to save


def _run(job: Job, scratch: Path) -> None:
    import torchrunx

    from mjtrain.launcher.rank.spawned import run_rank

    _keep_off_the_network(scratch, num_ranks=len(job.plan.ranks))
    launcher = torchrunx.Launcher(
        hostnames=[HOST],
        workers_per_host=len(job.plan.ranks),
        backend=None,  # the ranks own their process group
        copy_env_vars=(),  # a fork has the environment already
    ).set_logging_handlers(partial(_serve_no_logs, os.getpid()))
    launcher.run(run_rank, job.plan, scratch, job.payload)


def _serve_no_logs(parent: int) -> list[Any]:
    """Idle where torchrunx would listen for pickled log records; the launcher has the ranks' streams itself."""
    die_with_parent(parent)
    while True:
        signal.pause()


def _keep_off_the_network(scratch: Path, num_ranks: int) -> None:
    """Have torchrunx start its agent by a fork and meet it through a file."""
    import torch.distributed as dist
    import torchrunx.agent
    import torchrunx.launcher
    import torchrunx.utils.comm
    import torchrunx.worker

    from mjtrain.launcher.job.torchrunx_agent import replace_names, run_agent

    def execute(command: dict[str, Any] | str, hostname: str, **_: Any) -> None:
        if isinstance(command, str):
            return  # "kill PID" at the end: the reaper does that
        spawner = os.getpid()
        if os.fork() == 0:
            run_agent(spawner, scratch, num_ranks, hostname=hostname, **command)

    def describe_agent(**details: Any) -> dict[str, Any]:
        return {name: details[name] for name in ("launcher_port", "world_size", "rank", "agent_timeout")}

    def meet(world_size: int, **_: Any) -> Any:
        return dist.FileStore(str(scratch / "agents"), world_size)  # pyright: ignore[reportPrivateImportUsage]

    loopback = SimpleNamespace(getfqdn=lambda: "127.0.0.1")
    store = SimpleNamespace(
        TCPStore=meet,
        init_process_group=dist.init_process_group,
        destroy_process_group=dist.destroy_process_group,
        all_gather_object=dist.all_gather_object,
    )
    replace_names(
        torchrunx.launcher,
        build_launch_command=describe_agent,
        execute_command=execute,
        get_open_port=lambda: 0,
        socket=loopback,
    )
    replace_names(torchrunx.utils.comm, dist=store)
    replace_names(torchrunx.agent, get_open_port=lambda: 0, socket=loopback)
    for module in (torchrunx.agent, torchrunx.worker):
        replace_names(module, log_records_to_socket=lambda **_: None, redirect_stdio_to_logger=lambda _: None)


if __name__ == "__main__":
    main()
