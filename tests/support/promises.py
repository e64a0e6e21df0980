"""What the project promises on an idle machine, and jobs that wait at the same time."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from support.jobs import Job, Outcome
from support.machine import patience

PROMISES = "MJTRAIN_TEST_PROMISES"
"""Environment variable; 1 where the machine is idle and one job at a time runs, as in benchmarks/fault_promises.py."""

Together = dict[str, tuple[Job, Future[Outcome]]]
"""Jobs that have ended, by name, and their outcomes."""


def is_idle() -> bool:
    """Whether the machine has nothing else to do, so that promises about time can be checked."""
    return os.environ.get(PROMISES) == "1"


def promised(seconds: float) -> float:
    """Return the limit of what is promised within `seconds` on an idle machine; more where it may not be idle."""
    return seconds if is_idle() else patience(seconds)


def run_together(folder: Path, starts: Mapping[str, Callable[[Path], Job]], since: float | None = None) -> Together:
    """Run jobs to their ends, all at the same time; one after the other where promises are checked.

    Args:
        folder: In which each job gets a folder with its name.
        starts: Start a job in its folder, by name.
        since: As of `Job.finish`.
    """
    jobs: Together = {}
    with ThreadPoolExecutor(len(starts)) as pool:
        for name, start in starts.items():
            (folder / name).mkdir()
            job = start(folder / name)
            jobs[name] = job, pool.submit(job.finish, since)
            if is_idle():
                wait([jobs[name][1]])
    return jobs
