"""Start a function on every rank of a job."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjtrain.config import LaunchConfig
from mjtrain.launcher.failure import RankFailedError
from mjtrain.launcher.planning.external import ExternalRank
from mjtrain.launcher.planning.plan import Host, LaunchPlan
from mjtrain.launcher.planning.resolve import resolve_hostnames, resolve_plan
from mjtrain.launcher.rank.in_process import run_in_process
from mjtrain.standard_streams import open_missing_streams

if TYPE_CHECKING:
    from mjtrain.launcher.multinode.node_rendezvous import NodeRendezvousClient, NodeRendezvousServer
    from mjtrain.launcher.rank.rendezvous import RankRendezvous
    from mjtrain.launcher.spawn import OnRestart

__all__ = [
    "LaunchPlan",
    "RankFailedError",
    "count_gpus",
    "find_hosts",
    "gather",
    "launch",
    "make_plan",
    "resolve_plan",
    "run_plan",
]


def launch(fn: Callable[..., Any], *args: Any, launch: LaunchConfig | None = None) -> Any:
    """Call fn(context, *args) on every rank.

    Args:
        fn: Any function; its first argument is the rank's `RankContext`. With several ranks, it and its arguments
            travel by cloudpickle.
        *args: Further arguments, the same for every rank.
        launch: Which ranks; by default the first visible GPU, or the CPU.

    Returns:
        What rank 0 returned; in a job that torchrun or srun has started, what this rank returned.

    Raises:
        RequestError: The launch cannot be met on this machine.
        Exception: The first exception raised by any rank.
        RankFailedError: A rank ended without one.
    """
    config = launch or LaunchConfig()
    plan = make_plan(config, hosts=find_hosts(config))
    return run_plan(plan, fn, *args, meeting=gather(plan))


def find_hosts(config: LaunchConfig, folder: Path | None = None) -> tuple[Host, ...]:
    """Ask the hosts of --hostnames what they are like; nobody, where there are none.

    Args:
        config: What was asked for.
        folder: What must be writable on all of them.

    Raises:
        RequestError: Some cannot be used; further problems are notes.
    """
    counts = resolve_hostnames(config, os.environ)
    if not counts:
        return ()
    from mjtrain.launcher.multinode.probe import survey_hosts

    return tuple(replace(host, num_ranks=counts[host.name]) for host in survey_hosts(list(counts), config, folder))


def make_plan(config: LaunchConfig, run_dir: Path | None = None, hosts: tuple[Host, ...] = ()) -> LaunchPlan:
    """Resolve a launch against this machine and the hosts that `find_hosts` found, see `resolve_plan`."""
    num_gpus = 0 if config.gpu_ids is None or hosts else count_gpus()
    num_cores = len(os.sched_getaffinity(0))
    return resolve_plan(config, os.environ, num_gpus, num_cores=num_cores, run_dir=run_dir, hosts=hosts)


def gather(
    plan: LaunchPlan, request: str = ""
) -> "RankRendezvous | NodeRendezvousServer | NodeRendezvousClient | None":
    """Wait for the others of a job that something else has started; None where this process starts the job.

    Args:
        plan: What to do.
        request: The same in words, which must be the same on every node; lines.

    Raises:
        ConnectionError: They cannot be reached, or do not come.
        RequestError: Another node wants something else, or has other packages.
    """
    world = plan.world
    if world is None:
        return None
    if isinstance(world, ExternalRank):
        from mjtrain.launcher.rank.rendezvous import RankRendezvous

        return RankRendezvous(world, plan.connect_timeout_s)
    from mjtrain.launcher.multinode.node_rendezvous import NodeRendezvousClient, NodeRendezvousServer

    end = NodeRendezvousServer if world.node_rank == 0 else NodeRendezvousClient
    return end(world, len(plan.ranks), request, plan.connect_timeout_s)


def run_plan(
    plan: LaunchPlan,
    fn: Callable[..., Any],
    *args: Any,
    meeting: "RankRendezvous | NodeRendezvousServer | NodeRendezvousClient | None" = None,
    crash_dir: Path | None = None,
    preload: tuple[str, ...] = (),
    on_restart: "OnRestart | None" = None,
    saved_progress: Callable[[], int] = lambda: 0,
) -> Any:
    """Carry out a plan: call fn(context, *args) on every rank and return what rank 0 returned.

    Args:
        plan: Who runs where.
        fn: What to run.
        *args: Its arguments after the context.
        meeting: What `gather` returned for this plan.
        crash_dir: Where the traceback of a failed rank goes; None writes none.
        preload: Modules that fn imports; spawned ranks share one import of them.
        on_restart: Told before each restart.
        saved_progress: How much of the work a restart would not do again, in any unit: who gets further need not wait.
    """
    open_missing_streams()
    if plan.mode in ("in_process", "join"):
        from mjtrain.launcher.rank.rendezvous import RankRendezvous

        return run_in_process(plan, fn, args, crash_dir, meeting if isinstance(meeting, RankRendezvous) else None)
    if plan.mode == "node" and not plan.leads:
        from mjtrain.launcher.multinode.node_rendezvous import NodeRendezvousClient
        from mjtrain.launcher.multinode.run import run_called

        assert isinstance(meeting, NodeRendezvousClient)
        return run_called(plan, fn, args, caller=meeting, preload=preload)
    from mjtrain.launcher.spawn import run_spawned

    gate = None
    if plan.mode == "node":
        from mjtrain.launcher.multinode.node_rendezvous import NodeRendezvousServer

        assert isinstance(meeting, NodeRendezvousServer)
        gate = meeting
    try:
        return run_spawned(
            plan,
            fn,
            args,
            crash_dir=crash_dir,
            preload=preload,
            on_restart=on_restart,
            saved_progress=saved_progress,
            gate=gate,
        )
    finally:
        if gate is not None:
            gate.close()


def count_gpus() -> int:
    """Count the GPUs that CUDA sees under the variables of this process."""
    import torch

    return torch.cuda.device_count()
