"""What a sweep finds, what pruning saves, and what running two trials side by side brings.

    uv run benchmarks/sweep.py [--trials 24] [--max-iterations 160] [--num-envs 256] [--seeds 1 2 3] [--out FOLDER]

Searches learning rate, entropy bonus, networks and epochs of Cartpole-Swingup, in ranges around a bad default: by
random search without pruning, and as `sweep` does by default (tpe, asha), with several seeds. A seed is also that of
the trainings, on which depends how many trials reach the threshold. What counts is the env steps of all trials until
the first one reaches it: of random search the median over random orders of its trials, one after the other; of the
other what two trials side by side have done. Then shorter trials, two side by side, and one after the other. Each is
the command sweep, so this program continues where it was stopped, except for times. On two cores a seed takes a quarter
of an hour.
"""

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjtrain.runs.run import parse_metrics

TASK = "Cartpole-Swingup"
THRESHOLD = 9.0
"""Return of an evaluation, of 12, from which on the pole counts as swung up."""

SPACE = (
    ("agent.algorithm.learning-rate", "log", "1e-5", "1e-1"),
    ("agent.algorithm.entropy-coef", "log", "1e-4", "0.3"),
    ("agent.actor.hidden-dims,agent.critic.hidden-dims", "choice", "4", "16", "64 64", "128 128"),
    ("agent.algorithm.num-learning-epochs", "int", "1", "8"),
)
FIXED = ("--agent.algorithm.schedule", "fixed")
ORDERS = 10_000


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial."""

    env_steps: int
    """Env steps that it did."""

    to_threshold: int | None
    """Env steps after which it had reached the threshold; None if it did not."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One sweep."""

    trials: list[Trial]
    best: float
    wall_s: float

    to_threshold: int | None
    """Env steps that all trials had done when the first one reached the threshold; None if none did."""


def search(name: str, arguments: argparse.Namespace, *options: str, seed: int = 0) -> Outcome:
    """Run one sweep to its end."""
    folder = Path(arguments.out) / name
    command = [sys.executable, "-m", "mjtrain.cli.sweep", TASK, "--trials", str(arguments.trials)]
    command += [word for words in SPACE for word in ("--param", *words)]
    command += ["--metric", "eval/return", "--gpus-per-trial", "0", "--sweep-dir", str(folder), *options, "--", *FIXED]
    command += ["--num-envs", str(arguments.num_envs), "--max-iterations", str(arguments.max_iterations)]
    command += ["--seed", str(seed)]
    began = time.monotonic()
    process, note = subprocess.Popen(command), folder / "threshold.txt"
    while process.poll() is None:
        time.sleep(1.0)
        if not note.exists() and (spent := spend_to_threshold(folder)) is not None:
            note.write_text(str(spent))
    if process.returncode != 0:
        sys.exit(process.returncode)
    wall_s = time.monotonic() - began
    summary = json.loads((folder / "sweep.json").read_text())
    trials = [read_trial(folder, trial) for trial in summary["trials"]]
    best = summary["best"]
    print(f"{name}: {summary['counts']}, {wall_s:.0f} s; best: {best['command']}", flush=True)
    to_threshold = int(note.read_text()) if note.exists() else None
    return Outcome(trials=trials, best=best["value"], wall_s=wall_s, to_threshold=to_threshold)


def spend_to_threshold(folder: Path) -> int | None:
    """Count the env steps that all trials have done until now, if one has reached the threshold."""
    runs = [read_rows(path) for path in folder.glob("runs/*/*/metrics.jsonl")]
    if not any(has_reached(row) for rows in runs for row in rows):
        return None
    return sum(rows[-1]["env_steps_total"] for rows in runs if rows)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the iterations of a run, which may be at work."""
    return parse_metrics(path.read_text().splitlines())[0]


def has_reached(row: dict[str, Any]) -> bool:
    """Whether an evaluation says that the pole swings up."""
    return (row.get("eval/return") or 0.0) >= THRESHOLD


def read_trial(folder: Path, trial: dict[str, Any]) -> Trial:
    """Read from a trial's metrics when it reached the threshold."""
    rows = [row for run in trial["runs"] for row in read_rows(folder / run / "metrics.jsonl")]
    reached = next((row["env_steps_total"] for row in rows if has_reached(row)), None)
    return Trial(env_steps=trial["env_steps"], to_threshold=reached)


def count_steps(trials: list[Trial]) -> int | None:
    """Count the env steps of a search until one of its trials, in this order, reaches the threshold."""
    spent = 0
    for trial in trials:
        if trial.to_threshold is not None:
            return spent + trial.to_threshold
        spent += trial.env_steps
    return None


def find_median(trials: list[Trial]) -> float:
    """Return the median of `count_steps` over random orders; infinite if no trial reaches the threshold."""
    source = random.Random(0)
    counts = [count_steps(source.sample(trials, len(trials))) for _ in range(ORDERS)]
    return statistics.median(float("inf") if count is None else count for count in counts)


def describe(outcome: Outcome) -> str:
    """Say how good a search was."""
    reached = [trial.to_threshold for trial in outcome.trials if trial.to_threshold is not None]
    line = f"best return {outcome.best:.2f}; {len(reached)} of {len(outcome.trials)} trials reach {THRESHOLD:g}"
    if reached:
        line += f", after {min(reached):,} env steps at the earliest, {statistics.median(reached):,.0f} in the median"
    return line


def main() -> None:
    """Run the sweeps and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--max-iterations", type=int, default=160)
    parser.add_argument("--timed-iterations", type=int, default=50, help="of the two searches that are timed")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", default="sweep_benchmark")
    arguments = parser.parse_args()
    blind, beside = ("--sampler", "random", "--pruner", "none"), ("--jobs", "2", "--cores-per-trial", "1")
    lines, shares = [""], []
    for seed in arguments.seeds:
        plain = search(f"random_{seed}", arguments, *blind, *beside, seed=seed)
        found = search(f"tpe_asha_{seed}", arguments, *beside, seed=seed)
        by_chance, spent = find_median(plain.trials), math.inf if found.to_threshold is None else found.to_threshold
        shares.append(spent / by_chance)
        done, whole = (sum(trial.env_steps for trial in outcome.trials) for outcome in (found, plain))
        lines.append(f"seed {seed}, random search: threshold after {by_chance:,.0f} env steps; {describe(plain)}")
        lines.append(f"seed {seed}, sweep: threshold after {spent:,} env steps; {describe(found)}")
        lines.append(f"seed {seed}, sweep: {100 * (1 - done / whole):.0f} % of the env steps saved")
    arguments.max_iterations = arguments.timed_iterations
    fast = search("timed_side_by_side", arguments, *blind, *beside)
    slow = search("timed_one_by_one", arguments, *blind, "--jobs", "1", "--cores-per-trial", "1")
    print("\n".join(lines))
    print(f"env steps until the threshold, sweep against random search: {statistics.median(shares):.2f} in the median")
    print(f"two side by side were {slow.wall_s / fast.wall_s:.2f} times as fast as one after the other")


if __name__ == "__main__":
    main()
