"""A job on several hosts that this process starts over ssh or srun; lost hosts that come back are noticed."""

import contextlib
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mjtrain.launcher.base import LaunchRequest
from mjtrain.launcher.failure import RunResult
from mjtrain.launcher.job.spawner import Job
from mjtrain.launcher.multinode.coordinator import Coordinator
from mjtrain.launcher.multinode.probe import find_answering, select_environ
from mjtrain.launcher.multinode.transport import HostHandle, open_handles
from mjtrain.launcher.spawn import run_spawned
from mjtrain.runtime.processes import module_path

Look = Callable[[Callable[[], bool]], Sequence[int]]
"""Takes what tells whether the watch is over; looks once, and returns the hosts that came back, by their index in the
plan."""

LOOK_INTERVAL_S = 10.0
"""Time between two looks for hosts that were lost, over ssh or srun."""


def run_on_hosts(request: LaunchRequest) -> Any:
    """Run a job on the hosts of its plan; returns and raises as `run_spawned` does."""
    plan = request.plan

    def run_once(job: Job, log_dir: Path | None, lost: Sequence[int]) -> RunResult:
        names = [host.name for host in job.plan.hosts]
        handles = open_handles(names, ssh_config_file=plan.ssh_config_file, transport=plan.transport)
        return run_and_watch(job, log_dir, handles, lost, partial(find_returned, lost), LOOK_INTERVAL_S)

    def find_returned(lost: Sequence[int], is_over: Callable[[], bool] = lambda: False) -> list[int]:
        answering = find_answering([plan.hosts[index].name for index in lost], plan, is_over)
        return [index for index in lost if plan.hosts[index].name in answering]

    return run_spawned(request, run_once, find_returned)


def run_and_watch(
    job: Job, log_dir: Path | None, handles: list[HostHandle], lost: Sequence[int], look: Look, interval_s: float
) -> RunResult:
    """Start a job on every host, and return when no process of it is left there.

    With --rejoin-at-save look meanwhile for the hosts that were lost.
    """
    plan = job.plan
    assert plan.master is not None
    address = plan.master[0]
    folder = None if log_dir is None else str(log_dir)
    environ = {**select_environ(os.environ, plan.copy_env), "PYTHONPATH": module_path()}

    def make_start(index: int, port: int) -> tuple[dict[str, Any], bytes]:
        if not handles[index].trusted:  # it has the function itself, and unpickles nothing
            restarts = plan.ranks[0].restarts
            fields = {"address": address, "port": port, "log_dir": folder, "restarts": restarts}
            if plan.places is None:
                return fields, b""
            places = [[place.node, place.slot] for place in plan.places]
            return {**fields, "places": places, "left_out": plan.ranks[0].left_out}, b""
        part = replace(job, plan=plan.part(index, port))
        return {"environ": environ, "host": handles[index].host, "log_dir": folder}, pickle.dumps(part)

    if not lost or not plan.rejoin_at_save:
        return Coordinator(plan, handles).run(make_start)
    with _watch(look, interval_s) as hosts_wait:
        return Coordinator(plan, handles, hosts_wait).run(make_start)


@contextlib.contextmanager
def _watch(look: Look, interval_s: float) -> Iterator[Callable[[], bool]]:
    """Look again and again, in a thread; give what tells whether hosts came back, which may be lost once more."""
    found, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(interval_s):
            if look(over.is_set):
                found.set()

    thread = threading.Thread(target=watch, name="mjtrain-return", daemon=True)
    thread.start()
    try:
        yield found.is_set
    finally:
        over.set()
        thread.join()  # no look is in progress any more
