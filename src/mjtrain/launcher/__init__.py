"""Start a function on every rank of a job, from this process or as one process of an external job."""

import inspect
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from mjtrain.config import LaunchConfig
from mjtrain.launcher.base import Decide, Decision, LaunchRequest, Rendezvous
from mjtrain.launcher.failure import RankFailedError
from mjtrain.launcher.faults import find_function_problems
from mjtrain.launcher.ipc.signals import NotSavedError
from mjtrain.launcher.planning.external import ExternalRank, add_local_world_size
from mjtrain.launcher.planning.placement import resolve_hostnames, resolve_plan
from mjtrain.launcher.planning.plan import Host, LaunchPlan
from mjtrain.launcher.rank.in_process import check_thread, run_in_process
from mjtrain.runtime.errors import RequestError, refuse
from mjtrain.runtime.machine import count_cores, count_gpus
from mjtrain.runtime.processes import ancestor_commands
from mjtrain.runtime.standard_streams import open_missing_streams, show_crashes

__all__ = [
    "LaunchPlan",
    "LaunchRequest",
    "NotSavedError",
    "RankFailedError",
    "Rendezvous",
    "check_thread",
    "find_hosts",
    "launch",
    "make_plan",
    "read_environ",
    "rendezvous",
    "resolve_plan",
    "run_plan",
]


def launch(fn: Callable[..., Any], *args: Any, launch: LaunchConfig | None = None) -> Any:
    """Call fn(context, *args) on every rank.

    Args:
        fn: Any function; its first argument is the rank's `RankContext`. With several ranks, it and its arguments
            travel by cloudpickle.
        *args: Further arguments, the same for every rank.

    Returns:
        What rank 0 returned; in a job that torchrun or srun has started, what this rank returned.

    Raises:
        RequestError: The launch cannot be met on this machine, or fn returns before it has run.
        Exception: The first exception raised by any rank.
        RankFailedError: A rank ended without an exception, or by sys.exit.
    """
    _check_function(fn)
    config = LaunchConfig() if launch is None else launch
    plan = make_plan(config, hosts=find_hosts(config))
    refuse(find_function_problems(plan.faults))
    if plan.rejoin_at_save:
        raise RequestError("--rejoin-at-save: is for trainings, which say when they have saved; leave it out")
    return run_plan(LaunchRequest(plan=plan, fn=fn, args=args), rendezvous(plan))


def _check_function(fn: Callable[..., Any]) -> None:
    """Refuse what cannot be called, or only makes a coroutine or a generator, which nobody would run."""
    if not callable(fn):
        raise RequestError(f"launch: {fn!r} is not a function; give one that takes a RankContext")
    for function in (fn, getattr(fn, "__call__", None)):  # noqa: B004 - an object may have an async __call__
        name = getattr(fn, "__name__", type(fn).__name__)
        if inspect.iscoroutinefunction(function):
            raise RequestError(f"launch: {name} is a coroutine function; give one that calls asyncio.run({name}(...))")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise RequestError(f"launch: {name} is a generator function; give one that returns a value")


def find_hosts(config: LaunchConfig, folder: Path | None = None) -> tuple[Host, ...]:
    """Probe the hosts of --hostnames; empty if none are named."""
    counts = resolve_hostnames(config, read_environ())
    if not counts:
        return ()
    from mjtrain.launcher.multinode.probe import probe_hosts

    return tuple(replace(host, num_ranks=counts[host.name]) for host in probe_hosts(list(counts), config, folder))


def make_plan(config: LaunchConfig, *, hosts: tuple[Host, ...] = ()) -> LaunchPlan:
    """Resolve a launch against this machine and the hosts that `find_hosts` found, see `resolve_plan`."""
    num_gpus = 0 if config.gpu_ids is None or hosts else count_gpus()
    return resolve_plan(config, read_environ(), num_gpus, num_cores=count_cores(), hosts=hosts)


def read_environ() -> dict[str, str]:
    """Return this process's environment for `resolve_plan`, see `add_local_world_size`."""
    return add_local_world_size(os.environ, ancestor_commands())


def rendezvous(plan: LaunchPlan, request: str = "") -> Rendezvous:
    """Wait for the other processes of a job that something else has started; for none if this process starts the job.

    Args:
        request: What to do, in lines of text that must be the same on every node or rank.

    Raises:
        ConnectionError: The others cannot be reached, or do not connect.
        RequestError: Another node or rank has another request, or a node other packages.
    """
    external = plan.external
    if external is None:
        return SoleLauncher()
    if isinstance(external, ExternalRank):
        from mjtrain.launcher.rank.rank_rendezvous import RankRendezvous

        return RankRendezvous(external, request, plan.connect_timeout_s)
    from mjtrain.launcher.multinode.node_rendezvous import NodeRendezvousClient, NodeRendezvousServer

    end = NodeRendezvousServer if external.node_rank == 0 else NodeRendezvousClient
    return end(external, len(plan.ranks), request, plan.connect_timeout_s)


def run_plan(request: LaunchRequest, rendezvous: Rendezvous) -> Any:
    """Carry out a plan by what `rendezvous` returned for it, which is closed; return what rank 0 returned."""
    open_missing_streams()
    show_crashes()
    with closing(rendezvous):
        return rendezvous.run(request)


class SoleLauncher:
    """Rendezvous of a job that this process launches by itself."""

    leads = True

    def agree(self, decide: Decide) -> Decision:
        """Return what is chosen here."""
        return decide(None)

    def run(self, request: LaunchRequest) -> Any:
        """Run the whole job."""
        if request.plan.mode == "in_process":
            return run_in_process(request)
        from mjtrain.launcher.spawn import run_spawned

        if not request.plan.hosts:
            return run_spawned(request)
        from mjtrain.launcher.multinode.coordinator import run_on_hosts

        return run_on_hosts(request)

    def close(self) -> None:
        """Do nothing: this node is the only one."""
