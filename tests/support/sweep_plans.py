"""Options and plans of sweeps that say only what a test is about."""

from pathlib import Path
from typing import Any

from mjtrain.tools.sweep.plan import SweepOptions, SweepPlan


def make_options(**options: Any) -> SweepOptions:
    asked: dict[str, Any] = {"task": "X", "space": (), "trials": 9, "metric": None, "direction": None}
    asked |= {"sampler": "random", "pruner": "asha", "min_iterations": None, "seeds_per_trial": 1, "jobs": None}
    asked |= {"cores_per_trial": None, "gpus_per_trial": None, "start_timeout_s": None, "stall_timeout_s": 1800.0}
    asked |= {"shared": False, "for_wandb": False, "sweep_dir": None, "train_flags": ()}
    return SweepOptions(**asked | options)


def make_plan(folder: Path, **settings: Any) -> SweepPlan:
    """Make a plan; settings that are not its own are those of its options."""
    plan: dict[str, Any] = {"folder": folder, "metric": "mean_reward", "direction": "maximize", "added_flags": ()}
    plan |= {"slots": (), "max_iterations": 90, "min_iterations": 22, "seed": 0, "start_timeout_s": 1800.0}
    plan |= {"stop_grace_s": 30.0, "num_reports": 90}
    options = {name: value for name, value in settings.items() if name not in plan}
    return SweepPlan(options=make_options(**options), **plan | {k: v for k, v in settings.items() if k in plan})
