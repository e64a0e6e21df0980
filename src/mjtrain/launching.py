"""What the composition of a run asks of the launcher, in one place."""

import dataclasses
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mjtrain.config import LaunchConfig
from mjtrain.launcher import LaunchPlan, find_hosts, gather, make_plan, run_plan

RECORDED_PACKAGES = ("mjtrain", "torch", "rsl-rl-lib", "mujoco", "mujoco-warp", "warp-lang", "torchrunx")

_SPAWNING = ("spawn", "hosts", "node")
"""Modes of a plan whose ranks have log files."""


class Rendezvous:
    """The processes of a job that agree on what to do; this process alone, where it starts the job itself."""

    def __init__(self, plan: LaunchPlan, request: str = "") -> None:
        self.leads = plan.leads
        """Whether this process decides for the job."""
        self.gathered = gather(plan, request)

    def agree(self, choose: Callable[[dict[str, Any] | None], dict[str, Any]]) -> dict[str, Any]:
        """Return what the leader chooses, plain values; the errors of the leader reach all.

        Args:
            choose: Called by the leader with what the job agreed on before it was restarted from outside, or None.
        """
        gathered = self.gathered
        return choose(None) if gathered is None else gathered.agree(lambda: choose(gathered.recall()))


def resolve_plan(launch: LaunchConfig, log_root: Path) -> LaunchPlan:
    """Resolve a launch against this machine and its other hosts, without a run directory."""
    return make_plan(launch, hosts=find_hosts(launch, log_root))


def plan_for_run(plan: LaunchPlan, launch: LaunchConfig, run_dir: Path, restarts: int = 0) -> LaunchPlan:
    """Return the plan with the log folder of a run, and with restarts of its ranks."""
    asked = os.environ.get("TORCHRUNX_LOG_DIR", launch.torchrunx_log_dir)
    log_dir = str(run_dir / "torchrunx") if asked is None else asked or None
    ranks = tuple(dataclasses.replace(rank, restarts=restarts) for rank in plan.ranks)
    return dataclasses.replace(plan, ranks=ranks, log_dir=log_dir if plan.mode in _SPAWNING else None)


def run(plan: LaunchPlan, fn: Callable[..., Any], *args: Any, rendezvous: Rendezvous, **options: Any) -> Any:
    """Call fn(context, *args) on every rank of a plan; see `launcher.run_plan`."""
    return run_plan(plan, fn, *args, meeting=rendezvous.gathered, **options)


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that matter for a run."""
    return {package: version(package) for package in RECORDED_PACKAGES}
