"""sweep.json: all trials of a sweep and the best one."""

import json
from collections.abc import Sequence
from pathlib import Path

from mjtrain.sweep.plan import SweepPlan
from mjtrain.sweep.trial_result import TrialResult, count_states, find_best

SUMMARY = "sweep.json"


def write_summary(plan: SweepPlan, trials: Sequence[TrialResult]) -> Path:
    """Write the file anew; a reader sees the old one or the new one.

    Raises:
        OSError: It cannot be written.
    """
    best, options = find_best(trials, maximize=plan.maximize), plan.options
    content = {
        "task": options.task,
        "metric": plan.metric,
        "direction": "maximize" if plan.maximize else "minimize",
        "space": {parameter.name: parameter.describe() for parameter in options.space},
        "train_flags": list(options.train_flags),
        "added_flags": list(plan.added_flags),
        "seeds_per_trial": options.seeds_per_trial,
        "sampler": options.sampler,
        "pruner": options.pruner,
        "num_trials": options.num_trials,
        "max_iterations": plan.max_iterations,
        "counts": count_states(trials),
        "env_steps": sum(trial.env_steps for trial in trials),
        "best": None if best is None else {**best.to_plain(), "command": plan.best_command(best.params)},
        "trials": [trial.to_plain() for trial in trials],
    }
    path = plan.folder / SUMMARY
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)
    return path
