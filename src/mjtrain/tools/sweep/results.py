"""How the trials of a sweep ended, and sweep.json."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from mjtrain.runtime.files import write_whole
from mjtrain.tools.sweep.plan import SUMMARY, SweepPlan

State = Literal["complete", "pruned", "failed", "paused", "running"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """One trial of a sweep; `sweep.json` has it with the same names."""

    number: int
    """From 0, in the order in which they were begun."""

    state: State
    """running: not ended; if no process trains it, the next start of the sweep continues with it. paused: not ended; it
    continues if it turns out to be among the best."""

    params: dict[str, Any]
    """Value of each parameter, by its name."""

    value: float | None = None
    """The metric: at the end of a trial that is complete, averaged over its seeds; the last one of a trial that was
    pruned. None if there is none."""

    seed_values: Sequence[float] = ()
    """The metric at the end of each seed's run that came to its end."""

    env_steps: int = 0
    """Env steps of all its runs, whole jobs."""

    train_s: float = 0.0
    """Seconds of their iterations, without starts and saves."""

    iterations: int = 0
    """Iterations of its last run."""

    cause: str = ""
    """Why it failed; empty otherwise."""

    runs: Sequence[str] = ()
    """Its run directories, below the sweep's folder."""


def find_best(trials: Iterable[TrialResult], plan: SweepPlan) -> TrialResult | None:
    """Return the complete trial with the best value; None if no trial is complete."""
    complete = [trial for trial in trials if trial.state == "complete"]
    return max(complete, key=lambda trial: plan.sign * (trial.value or 0.0), default=None)


def count_states(trials: Sequence[TrialResult]) -> dict[State, int]:
    """Count the trials by their state."""
    return {state: sum(trial.state == state for trial in trials) for state in STATES}


def write_summary(plan: SweepPlan, trials: Sequence[TrialResult]) -> None:
    """Rewrite sweep.json; a reader sees the old one or the new one.

    Raises:
        OSError: It cannot be written.
    """
    best, options = find_best(trials, plan), plan.options
    content = {
        "task": options.task,
        "metric": plan.metric,
        "direction": plan.direction,
        "space": {parameter.name: parameter.describe() for parameter in options.space},
        "train_flags": options.train_flags,
        "added_flags": plan.added_flags,
        "seeds_per_trial": options.seeds_per_trial,
        "sampler": options.sampler,
        "pruner": options.pruner,
        "num_trials": options.trials,
        "max_iterations": plan.max_iterations,
        "counts": count_states(trials),
        "env_steps": sum(trial.env_steps for trial in trials),
        "best": None if best is None else {**asdict(best), "command": plan.best_command(best.params)},
        "trials": [asdict(trial) for trial in trials],
    }
    write_whole(plan.folder / SUMMARY, json.dumps(content, indent=2) + "\n")
