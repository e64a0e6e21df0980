"""The spawner: a process that runs torchrunx.Launcher for a job on this host.

Run as `python -m mjtrain.launcher.job.spawner SCRATCH PARENT_PID`, below the reaper. It imports once what the ranks
need; the torchrunx agent and the ranks are forks of it, made before any thread has begun.
"""

import importlib
import os
import pickle
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from mjtrain.launcher.ipc.signals import STOP_SIGNALS
from mjtrain.launcher.planning.plan import LaunchPlan
from mjtrain.runtime.processes import die_with_parent
from mjtrain.runtime.standard_streams import flush_standard_streams, show_crashes

JOB_NAME = "job.pickle"
"""File in the job's folder that says what to start; only this user can write there."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the launcher asks the spawner for."""

    plan: LaunchPlan
    payload: bytes
    """The caller's function and arguments, pickled; only the ranks open it."""

    preload: tuple[str, ...]
    """Modules that the function will import."""


def main() -> None:
    """Start the job that the arguments name, and wait for it."""
    scratch, parent = Path(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent)
    show_crashes()
    for signum in STOP_SIGNALS:
        signal.signal(signum, lambda *_: None)  # the launcher decides; not ignored, as programs would inherit that
    job: Job = pickle.loads((scratch / JOB_NAME).read_bytes())
    for module in ("mjtrain.runtime.worker", *job.preload):
        importlib.import_module(module)
    from mjtrain.launcher.job.torchrunx_adapter import run_ranks  # the launcher imports this module, and no torch

    run_ranks(job.plan, job.payload, scratch)
    flush_standard_streams()
    os._exit(0)  # taking down all that was imported would take seconds, with nothing in them to save


if __name__ == "__main__":
    main()
