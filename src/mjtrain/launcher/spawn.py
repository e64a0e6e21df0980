"""Several ranks on this host, or one that is to be watched over: each in a process of its own."""

import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from mjtrain.launcher.failure import Failure, RunResult, write_crash_file
from mjtrain.launcher.ipc.signals import StopSignals, leave
from mjtrain.launcher.job.outputs import make_log_dir
from mjtrain.launcher.job.spawner import JOB_NAME, Job
from mjtrain.launcher.job.supervisor import Supervisor
from mjtrain.launcher.planning.plan import LaunchPlan

if TYPE_CHECKING:
    from mjtrain.launcher.multinode.node_rendezvous import NodeRendezvousServer

MAX_BACK_OFF_S = 30.0

STEADY_S = 10.0
"""A job that ran for so long before it failed, or that got further, is started again without further delay."""

OnRestart = Callable[[Failure, int, float], None]
"""Takes the failure, the number of the restart from 1 up, and the seconds until then."""


def run_spawned(
    plan: LaunchPlan,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    crash_dir: Path | None = None,
    preload: tuple[str, ...] = (),
    on_restart: OnRestart | None = None,
    saved_progress: Callable[[], int] = lambda: 0,
    gate: "NodeRendezvousServer | None" = None,
) -> Any:
    """Call fn(context, *args) in one new process per rank.

    Args:
        plan: The ranks, their environment, where their logs go, and how patient to be.
        fn: Any function that cloudpickle can carry.
        args: Its arguments after the context.
        crash_dir: Where the traceback of a failed rank goes; None writes none.
        preload: Modules that fn imports; they are imported once instead of by every rank.
        on_restart: Told before each restart.
        saved_progress: How much of the work a restart would not do again, in any unit.
        gate: Where other nodes have called, if this is node 0 of a job that something else has started.

    Returns:
        What rank 0 returned.

    Raises:
        RequestError: The log folder cannot be written, or a rank found that the request is wrong.
        Exception: The first exception that any rank raised.
        RankFailedError: A rank ended without one, or hung.
        KeyboardInterrupt: The job was stopped by SIGINT.
        SystemExit: The job was stopped by another signal.
    """
    # As bytes, so that only the ranks unpickle what is the caller's, and say so when that fails.
    payload = cloudpickle.dumps((fn, args))
    restarts = quick_failures = 0
    progress = saved_progress()
    while True:
        ranks = tuple(replace(rank, restarts=restarts) for rank in plan.ranks)
        verdict = _run_once(Job(plan=replace(plan, ranks=ranks), payload=payload, preload=preload), gate)
        failure = verdict.failure
        if failure is None:
            break
        if crash_dir is not None and failure.may_pass:
            failure = write_crash_file(crash_dir, failure)
        if restarts >= plan.max_restarts or not failure.may_pass or verdict.stop_signal is not None:
            raise failure.to_error() from None
        restarts += 1
        before, progress = progress, saved_progress()
        quick_failures = 0 if verdict.ran_s >= STEADY_S or progress > before else quick_failures + 1
        back_off_s = min(2.0**quick_failures, MAX_BACK_OFF_S)
        if on_restart is not None:
            on_restart(failure, restarts, back_off_s)
        with StopSignals(leave):
            time.sleep(back_off_s)
    if verdict.stop_signal is not None:
        leave(verdict.stop_signal)
    assert verdict.value is not None
    return cloudpickle.loads(verdict.value)


def _run_once(job: Job, gate: "NodeRendezvousServer | None") -> RunResult:
    """Start the job and see it through; when this returns, nothing of it is left."""
    log_dir = None if job.plan.log_dir is None else make_log_dir(job.plan.log_dir)
    if job.plan.mode != "spawn":
        from mjtrain.launcher.multinode.run import run_on_hosts

        return run_on_hosts(job, log_dir, gate)
    # The ranks find the modules that the caller finds, next to a script for instance.
    module_path = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    environ = {**os.environ, **job.plan.environ, "PYTHONPATH": module_path}
    scratch = Path(tempfile.mkdtemp(prefix="mjtrain-"))
    try:
        (scratch / JOB_NAME).write_bytes(pickle.dumps(job))
        return Supervisor(job.plan, scratch, log_dir).run(environ)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
