"""Start a function on every rank of a job."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjtrain.config import LaunchConfig
from mjtrain.launcher.failure import RankFailedError
from mjtrain.launcher.in_process import run_in_process
from mjtrain.launcher.plan import LaunchPlan, resolve_plan

if TYPE_CHECKING:
    from mjtrain.launcher.meeting import Meeting
    from mjtrain.launcher.spawn import OnRestart

__all__ = ["LaunchPlan", "RankFailedError", "count_gpus", "gather", "launch", "make_plan", "resolve_plan", "run_plan"]


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
    plan = make_plan(launch or LaunchConfig())
    return run_plan(plan, fn, *args, meeting=gather(plan))


def make_plan(config: LaunchConfig, run_dir: Path | None = None) -> LaunchPlan:
    """Resolve a launch against this machine, see `resolve_plan`."""
    num_gpus = 0 if config.gpu_ids is None else count_gpus()
    return resolve_plan(config, os.environ, num_gpus, num_cores=len(os.sched_getaffinity(0)), run_dir=run_dir)


def gather(plan: LaunchPlan) -> "Meeting | None":
    """Wait for the other ranks of a job that something else has started; None where this process starts the job.

    Raises:
        ConnectionError: They cannot be reached, or do not come.
    """
    if plan.world is None:
        return None
    from mjtrain.launcher.meeting import Meeting

    return Meeting(plan.world, plan.connect_timeout_s)


def run_plan(
    plan: LaunchPlan,
    fn: Callable[..., Any],
    *args: Any,
    meeting: "Meeting | None" = None,
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
    if plan.mode in ("in_process", "join"):
        return run_in_process(plan, fn, args, crash_dir, meeting)
    from mjtrain.launcher.spawn import run_spawned

    return run_spawned(
        plan, fn, args, crash_dir=crash_dir, preload=preload, on_restart=on_restart, saved_progress=saved_progress
    )


def count_gpus() -> int:
    """Count the GPUs that CUDA sees under the variables of this process."""
    import torch

    return torch.cuda.device_count()
