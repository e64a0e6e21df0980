"""Options and plans of sweeps that say only what a test is about."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mjtrain.cli.train import read_command
from mjtrain.tools.sweep.plan import SweepPlan, SweepRequest, resolve_sweep
from mjtrain.tools.sweep.space import parse_space


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


def plan_sweep(task: str, *parameters: Sequence[str], trials: int = 1, flags: Sequence[str] = ()) -> SweepPlan:
    """Resolve a sweep on one CPU core; without parameters, trials have 2 or 3 iterations."""
    space = parse_space(parameters or [("max-iterations", "choice", "2", "3")])
    options = {"metric": "mean_reward", "pruner": "none", "train_flags": tuple(flags)}
    request = make_options(task=task, parameters=space, trials=trials, jobs=1, gpus_per_trial=0, **options)
    return resolve_sweep(request, lambda words: read_command(words)[:2])
