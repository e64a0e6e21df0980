"""Options and plans of sweeps that say only what a test is about."""

from pathlib import Path
from typing import Any

from mjtrain.tools.sweep.plan import SweepPlan, SweepRequest


def make_options(**options: Any) -> SweepRequest:
    asked: dict[str, Any] = {"task": "X", "parameters": (), "trials": 9, "sampler": "random", "train_flags": ()}
    return SweepRequest(**asked | options)


def make_plan(folder: Path, **settings: Any) -> SweepPlan:
    """Make a plan; settings that are not its own are those of its options."""
    plan: dict[str, Any] = {"folder": folder, "metric": "mean_reward", "direction": "maximize", "added_flags": ()}
    plan |= {"slots": (), "max_iterations": 90, "min_iterations": 22, "seed": 0, "start_timeout_s": 1800.0}
    plan |= {"stop_grace_s": 30.0, "num_reports": 90}
    options = {name: value for name, value in settings.items() if name not in plan}
    return SweepPlan(options=make_options(**options), **plan | {k: v for k, v in settings.items() if k in plan})
