"""Ranks in separate processes, which are supervised, and started again after failures."""

import contextlib
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mjtrain.launcher.base import LaunchRequest
from mjtrain.launcher.failure import RunResult, write_crash_file
from mjtrain.launcher.ipc.messages import HostConnection
from mjtrain.launcher.ipc.signals import NotSavedError, StopSignals, leave
from mjtrain.launcher.job.spawner import JOB_NAME, Job
from mjtrain.launcher.job.supervisor import Supervisor
from mjtrain.launcher.planning.membership import Membership, TooFewLeftError
from mjtrain.launcher.rank.spawned import pickle_with_code
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import check_working_directory, saying_where
from mjtrain.runtime.processes import is_ending, module_path
from mjtrain.runtime.standard_streams import write_to_stderr

MAX_BACK_OFF_S = 30.0

STEADY_S = 10.0
"""A job that ran this long before it failed, or that got further, is started again without further delay."""

_TELL_INTERVAL_S = 30.0

RunOnce = Callable[[Job, Path | None, Sequence[int]], RunResult]
"""Takes a job, the folder for its log files, and the hosts that it is left without because they were lost, by their
index in the plan; starts it, and returns when no process of it is left."""

FindReturned = Callable[[Sequence[int]], Sequence[int]]
"""Takes the hosts that were lost, by their index in the plan, and returns those that are there again."""


def run_host_job(
    job: Job,
    log_dir: Path | None,
    environ: Mapping[str, str],
    *,
    host: str = "localhost",
    connection: HostConnection | None = None,
) -> RunResult:
    """Start the ranks of this host and supervise them; when this returns, no process of them is left."""
    with saying_where("TMPDIR", os.environ.get("TMPDIR", "/tmp")):
        scratch = Path(tempfile.mkdtemp(prefix="mjtrain-"))
    try:
        with saying_where("TMPDIR", scratch):  # it may be full
            (scratch / JOB_NAME).write_bytes(pickle.dumps(job))
        supervisor = Supervisor(job.plan, scratch, log_dir, host=host, connection=connection)
        return supervisor.run({**environ, **job.plan.environ})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run_on_this_host(job: Job, log_dir: Path | None, _: Sequence[int]) -> RunResult:
    """Run a job whose ranks are all on this host, which cannot be lost."""
    return run_host_job(job, log_dir, {**os.environ, "PYTHONPATH": module_path()})


def run_spawned(
    request: LaunchRequest, run_once: RunOnce = run_on_this_host, find_returned: FindReturned = lambda _: ()
) -> Any:
    """Call fn(context, *args) in one new process per rank, again after failures as often as the plan allows.

    It is also called again, and that is not counted, where it has paused because hosts wait to be taken in.

    Raises:
        Exception: The first exception that any rank raised.
        RankFailedError: A rank ended without one, or hung.
        KeyboardInterrupt: The job was stopped by SIGINT.
        SystemExit: The job was stopped by another signal, or by any signal and had not saved in time.
    """
    with StopSignals(leave):  # between two starts; each start has its own
        return _run_until_done(request, run_once, find_returned)


def _run_until_done(request: LaunchRequest, run_once: RunOnce, find_returned: FindReturned) -> Any:
    check_working_directory()
    plan, membership = request.plan, Membership(request.plan)
    payload = pickle_with_code((request.fn, request.args))  # only the ranks open it, and report it when that fails
    starts = restarts = quick_failures = 0
    progress = request.saved_progress()
    while True:
        job = Job(plan=membership.plan.with_restarts(starts), payload=payload, preload=request.preload)
        log_dir = _make_log_dir(plan.log_dir, is_first=starts == 0)
        result = run_once(job, log_dir, membership.lost)
        failure = result.failure
        starts += 1
        if failure is None and result.paused and result.stop_signal is None:
            progress = request.saved_progress()
            change = membership.take_in(find_returned(membership.lost))
            if request.on_restart is not None:
                request.on_restart(None, restarts, 0.0, change)
            continue
        if failure is None:
            return unpickle_value(result)
        restarting = restarts < plan.max_restarts and failure.is_transient and result.stop_signal is None
        left = await_gone(result.left, plan.end_timeout_s if restarting else 0.0)
        if left:
            note = f"processes {left} of this job are still in the kernel, which ends them when their storage responds"
            failure = replace(failure, summary=f"{failure.summary} ({note})")
        if request.crash_dir is not None and failure.is_transient:
            failure = write_crash_file(request.crash_dir, failure)
        if not restarting or left:
            raise failure.to_error() from None
        restarts += 1
        before, progress = progress, request.saved_progress()
        try:
            check_working_directory()
            returned = find_returned(membership.lost) if membership.lost else ()
            culprit = failure.rank if failure.is_attributed else None
            change = membership.after_failure(culprit, result.lost_nodes, progress, returned)
            quick_failures = 0 if result.ran_s >= STEADY_S or progress > before else quick_failures + 1
            back_off_s = min(2.0**quick_failures, MAX_BACK_OFF_S)
            if request.on_restart is not None:
                request.on_restart(failure, restarts, back_off_s, change)
        except (TooFewLeftError, RequestError) as error:
            raise replace(failure, summary=f"{failure.summary} (not started again: {error})").to_error() from None
        time.sleep(back_off_s)


def _make_log_dir(log_dir: str | None, *, is_first: bool) -> Path | None:
    """Make {log_dir}/{date and time}, unique to a start; a restart does without where it cannot, as on a full disk."""
    if log_dir is None:
        return None
    stamp = datetime.now().isoformat(timespec="seconds")
    try:
        for count in range(1000):
            folder = Path(log_dir) / (f"{stamp}_{count}" if count else stamp)
            with contextlib.suppress(FileExistsError):
                folder.mkdir(parents=True)
                return folder
        raise FileExistsError(17, f"a thousand jobs began at {stamp}")
    except OSError as error:
        problem = (
            f"--torchrunx-log-dir {log_dir}: cannot be written ({error.strerror}); the variable TORCHRUNX_LOG_DIR wins "
            'over the flag, and "" writes no log files'
        )
        if is_first:
            raise RequestError(problem) from error
        write_to_stderr(f"warning: {problem}; this start writes no log files")
        return None


def await_gone(pids: Sequence[int], timeout_s: float) -> list[int]:
    """Wait for processes that the kernel does not let go, with a line now and then; return those that are left."""
    begin_s = told_s = time.monotonic()
    told_s -= _TELL_INTERVAL_S
    while (left := [pid for pid in pids if not is_ending(pid)]) and time.monotonic() - begin_s < timeout_s:
        if time.monotonic() - told_s >= _TELL_INTERVAL_S:
            told_s = time.monotonic()
            write_to_stderr(
                f"waiting for processes {left} of the last start, which are in uninterruptible sleep: a file system "
                f"or a device does not respond (at most {timeout_s:g} s, --end-timeout-s)"
            )
        time.sleep(0.1)
    return left


def unpickle_value(result: RunResult) -> Any:
    """Return what rank 0 returned; if a signal stopped the job, raise what that signal means."""
    if result.stop_signal is not None:
        if result.not_saved_s is not None:
            raise NotSavedError(result.stop_signal, result.not_saved_s)
        leave(result.stop_signal)
    assert result.value is not None
    return pickle.loads(result.value)
