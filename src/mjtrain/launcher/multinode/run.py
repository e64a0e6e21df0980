"""A job on several hosts: from the launcher's side, and from that of a node that something else has started."""

import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle

from mjtrain.launcher.failure import RunResult
from mjtrain.launcher.ipc.signals import leave
from mjtrain.launcher.job.spawner import Job
from mjtrain.launcher.multinode.coordinator import Coordinator
from mjtrain.launcher.multinode.node_agent import run_part
from mjtrain.launcher.multinode.node_rendezvous import NodeRendezvousClient, NodeRendezvousServer
from mjtrain.launcher.multinode.probe import select_environ
from mjtrain.launcher.multinode.transport import HostHandle, open_line
from mjtrain.launcher.planning.plan import LaunchPlan


def run_on_hosts(job: Job, log_dir: Path | None, gate: NodeRendezvousServer | None) -> RunResult:
    """Start the job on every host and see it through.

    Args:
        job: What to run; its plan has the hosts, or is that of node 0.
        log_dir: Where logs go on every host; None writes none.
        gate: Where the other nodes have called; None where the launcher reaches the hosts.
    """
    plan = job.plan
    restarts = plan.ranks[0].restarts
    folder = None if log_dir is None else str(log_dir)
    environ = {**select_environ(os.environ, plan.copy_env), "PYTHONPATH": _module_path()}
    lines = _open_lines(plan) if gate is None else _gather_lines(gate)
    if gate is not None:
        assert plan.place is not None
        plan = replace(plan, place=(gate.address, 0))

    def make_start(index: int, port: int) -> tuple[dict[str, Any], bytes]:
        if not lines[index].trusted:  # it has the function itself, and unpickles nothing
            return {"address": gate.address if gate else "", "port": port, "log_dir": folder, "restarts": restarts}, b""
        part = replace(job, plan=plan.part(index, port))
        return {"environ": environ, "host": lines[index].host, "log_dir": folder}, pickle.dumps(part)

    return Coordinator(lines, start_timeout_s=plan.start_timeout_s, stop_grace_s=plan.stop_grace_s).run(make_start)


def _open_lines(plan: LaunchPlan) -> list[HostHandle]:
    return [open_line(host.name, ssh_config_file=plan.ssh_config_file, transport=plan.transport) for host in plan.hosts]


def _gather_lines(gate: NodeRendezvousServer) -> list[HostHandle]:
    callers = gate.fill()
    return [open_line("localhost", ssh_config_file=None, transport="ssh"), *callers]


def _module_path() -> str:
    """Return where ranks find the modules that the caller finds, next to a script for instance."""
    return os.pathsep.join(path or str(Path.cwd()) for path in sys.path)


def run_called(
    plan: LaunchPlan,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    caller: NodeRendezvousClient,
    preload: tuple[str, ...],
) -> Any:
    """Run this node's ranks of a job that node 0 is the launcher of, as often as it says; return and raise as it does.

    Args:
        plan: The ranks of this node.
        fn: What to run.
        args: Its arguments after the context.
        caller: The line to node 0.
        preload: Modules that fn imports.
    """
    payload = cloudpickle.dumps((fn, args))
    os.environ["PYTHONPATH"] = _module_path()
    verdict = None
    node_rank = plan.ranks[0].node_rank
    try:
        while (message := caller.wait_for("start", "over"))["kind"] == "start":
            ranks = tuple(replace(rank, restarts=message["restarts"]) for rank in plan.ranks)
            part = replace(plan, ranks=ranks, place=(message["address"], 0)).part(node_rank, message["port"])
            job = Job(plan=part, payload=payload, preload=preload)
            verdict = run_part(caller.link, job, host=f"node{node_rank}", log_dir=message["log_dir"])
    except ConnectionError:
        if verdict is None or verdict.failure is None:
            raise
    if verdict is None:
        raise ConnectionError("node 0 of this job has ended it before it began")
    if verdict.failure is not None:
        raise verdict.failure.to_error() from None
    if verdict.stop_signal is not None:
        leave(verdict.stop_signal)
    assert verdict.value is not None
    return cloudpickle.loads(verdict.value)
