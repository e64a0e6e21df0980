"""Slurm jobs longer than their time limit: stopped shortly before it, they save, are queued again and resume."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from mjtrain.config import LaunchConfig, TrainConfig
from mjtrain.launcher import NotSavedError
from mjtrain.runtime.errors import RequestError

_REQUEUING = {128 + signal.SIGTERM, 128 + signal.SIGUSR1, 128 + signal.SIGUSR2}
"""Statuses of a run that was stopped by what Slurm sends before the end."""

_PATIENCE_S = 60.0


def resolve_requeue(
    config: TrainConfig, launch: LaunchConfig, environ: Mapping[str, str]
) -> tuple[TrainConfig, str | None]:
    """Decide what --requeue-on-signal means here; pure.

    Returns:
        The run, which resumes what the same job started before; and the number of the job to requeue, or None.
    """
    if not launch.requeue_on_signal:
        return config, None
    job = environ.get("SLURM_JOB_ID")
    if job is None:
        raise RequestError("--requeue-on-signal: this is not a Slurm job (SLURM_JOB_ID is not set)")
    run = config.run
    if run.resume is None:
        run = replace(run, resume="auto", run_name=run.run_name or f"slurm-{job}")
    return replace(config, run=run), job


@contextmanager
def requeue_when_stopped(job: str | None) -> Iterator[None]:
    """Queue a Slurm job again if SIGTERM, SIGUSR1 or SIGUSR2 stops the run of a with block, saved or not."""
    try:
        yield
    except SystemExit as stop:
        status = 128 + stop.signum if isinstance(stop, NotSavedError) else stop.code
        if job is not None and status in _REQUEUING:
            _requeue(job)
        raise


def _requeue(job: str) -> None:
    print(f"requeueing Slurm job {job}", file=sys.stderr, flush=True)  # noqa: T201
    try:
        done = subprocess.run(
            ["scontrol", "requeue", job], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
        problem = done.stderr.strip() if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        print(f"warning: job {job} could not be requeued: {problem}", file=sys.stderr, flush=True)  # noqa: T201
