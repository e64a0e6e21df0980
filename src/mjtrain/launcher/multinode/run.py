"""A job on several hosts that this process starts, over ssh or srun."""

import os
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mjtrain.launcher.base import LaunchRequest
from mjtrain.launcher.failure import RunResult
from mjtrain.launcher.job.spawner import Job
from mjtrain.launcher.multinode.coordinator import Coordinator
from mjtrain.launcher.multinode.probe import find_answering, select_environ
from mjtrain.launcher.multinode.transport import HostHandle, open_handle
from mjtrain.launcher.spawn import module_path, run_spawned


def run_on_hosts(request: LaunchRequest) -> Any:
    """Run a job on the hosts of its plan; returns and raises as `run_spawned` does."""
    plan = request.plan

    def run_once(job: Job, log_dir: Path | None) -> RunResult:
        handles = [
            open_handle(host.name, ssh_config_file=plan.ssh_config_file, transport=plan.transport)
            for host in job.plan.hosts
        ]
        return run_on_handles(job, log_dir, handles)

    def find_returned(lost: Sequence[int]) -> list[int]:
        answering = find_answering([plan.hosts[index].name for index in lost], plan)
        return [index for index in lost if plan.hosts[index].name in answering]

    return run_spawned(request, run_once, find_returned)


def run_on_handles(job: Job, log_dir: Path | None, handles: list[HostHandle]) -> RunResult:
    """Start a job on every host, and return when no process of it is left there.

    Args:
        job: What to run; its plan has the hosts, or is that of node 0.
        log_dir: Folder for log files, the same on every host; None writes none.
        handles: A connection to each host, by node rank.
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

    return Coordinator(handles, start_timeout_s=plan.start_timeout_s, stop_grace_s=plan.stop_grace_s).run(make_start)
