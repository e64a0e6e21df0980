"""Measure how long a task's default command takes from Enter to a policy that is good enough.

    uv run benchmarks/speedrun.py --track cartpole-balance
    uv run benchmarks/speedrun.py --track quadruped-flat --seeds 1 2 3
    uv run benchmarks/speedrun.py --track quadruped-flat --out runs     # keep them, for learning.py --runs
    uv run benchmarks/speedrun.py --track quadruped-flat --flags="--agent.algorithm.desired-kl 0.01"     # no record

The command runs in a separate process, with no flag but the seed and a checkpoint every 10 iterations. When all seeds
are trained, the checkpoints are judged in their order, each over 200 episodes with seeds that the training never saw,
until one meets all bars of the task in judges.py. What counts is the time stamp of that checkpoint's file; judging does
not. docs/speedrun.md has the rules and the records. Exits with 1 if a seed has no checkpoint that is good enough.
"""

import argparse
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from judges import GOALS

from learning import NUM_EPISODES, judge, read_rows
from mjtrain import LaunchConfig, launch
from mjtrain.runtime.machine import installed_packages

TRACKS = {
    "cartpole-balance": "Cartpole-Balance",
    "cartpole-swingup": "Cartpole-Swingup",
    "arm-reach": "Arm-Reach",
    "quadruped-flat": "Quadruped-Velocity-Flat",
    "quadruped-rough": "Quadruped-Velocity-Rough",
    "quadruped-track": "Quadruped-Track",
    "humanoid-track": "Humanoid-Track",
    "humanoid-flat": "Humanoid-Velocity-Flat",
    "humanoid-rough": "Humanoid-Velocity-Rough",
}
SAVE_INTERVAL = 10
JUDGE_SEED = 1_000_000
"""Added to the seed of a training, for worlds that none of its ranks saw."""


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The first checkpoint of a run that is good enough."""

    seed: int
    seconds: float
    """From Enter to the time stamp of its file."""

    env_steps: int
    checkpoint: str
    figures: list[float]
    """What the judge measured, in the order of the goal's measures."""


def train(task: str, seed: int, folder: Path, *flags: str) -> tuple[Path, float]:
    """Run the default command to its end; return the run directory and the time of Enter, in s since the epoch."""
    command = [str(Path(sys.executable).parent / "train"), task, "--seed", str(seed), *flags]
    command += ["--agent.save-interval", str(SAVE_INTERVAL)]
    begin = time.time()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    match = re.search(r"^run directory: (.*)$", done.stderr, re.MULTILINE)
    assert match is not None
    return folder / match[1], begin


def find_finish(task: str, seed: int, run_dir: Path, begin: float) -> Finish | None:
    """Judge the checkpoints of a run in their order; return the first that meets all bars, None if none does."""
    goal, rows = GOALS[task], {row["iteration"]: row for row in read_rows(run_dir)}
    iterations = sorted(int(path.stem.removeprefix("model_")) for path in run_dir.glob("model_*.pt"))
    for iteration in iterations:
        checkpoint = run_dir / f"model_{iteration}.pt"
        if goal.condition is not None and not goal.condition(rows[iteration]):
            continue
        where = LaunchConfig(gpu_ids=None, seed=JUDGE_SEED + seed)
        figures, _ = launch(judge, task, checkpoint, rows[iteration], launch=where)
        met = all(bar.met(figure) for bar, figure in zip(goal.measures, figures, strict=True))
        shown = ", ".join(f"{figure:.3f}" for figure in figures)
        print(f"seed {seed}, {checkpoint.name}: {shown}{'' if met else ' (not yet)'}", file=sys.stderr, flush=True)
        if met:
            return Finish(
                seed=seed,
                seconds=checkpoint.stat().st_mtime - begin,
                env_steps=rows[iteration]["env_steps_total"],
                checkpoint=checkpoint.name,
                figures=figures,
            )
    return None


def describe_machine() -> str:
    """Say what a record must say about where it was made; before the trainings, for the load of others."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    packages = installed_packages()
    versions = ", ".join(f"{name} {packages[name]}" for name in ("mujoco", "torch", "rsl-rl-lib") if name in packages)
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return f"{names[0] if names else platform.processor()}, {cores} cores, load {load:.1f} before; {versions}"


def main() -> None:
    """Train, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--track", required=True, choices=list(TRACKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], help="a record has at least 3")
    parser.add_argument("--flags", default="", help="of train, to see what a setting does; then it is not a record")
    parser.add_argument("--out", type=Path, help="folder that keeps the run directories")
    arguments = parser.parse_args()
    task = TRACKS[arguments.track]
    machine = describe_machine()
    finishes: list[Finish] = []
    bars = " | ".join(measure.heading() for measure in GOALS[task].measures)
    print(f"{arguments.track}: {task}, {NUM_EPISODES} episodes per checkpoint\n{machine}\n")
    print(f"| seed | seconds | env steps | checkpoint | {bars} |")
    print("|---" * (4 + len(GOALS[task].measures)) + "|", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if arguments.out is None else arguments.out.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        runs = {seed: train(task, seed, folder, *shlex.split(arguments.flags)) for seed in arguments.seeds}
        for seed, (run_dir, begin) in runs.items():
            finish = find_finish(task, seed, run_dir, begin)
            if finish is None:
                print(f"| {seed} | none is good enough |", flush=True)
                continue
            finishes.append(finish)
            cells = [str(seed), f"{finish.seconds:.1f}", f"{finish.env_steps:,}", finish.checkpoint]
            cells += [f"{figure:.3f}" for figure in finish.figures]
            print(f"| {' | '.join(cells)} |", flush=True)
    if finishes:
        seconds, steps = [finish.seconds for finish in finishes], [finish.env_steps for finish in finishes]
        print(f"\nmedian {statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})", end=", ")
        print(f"{statistics.median(steps):,.0f} env steps ({min(steps):,} to {max(steps):,}), {len(steps)} seeds")
    sys.exit(0 if len(finishes) == len(arguments.seeds) else 1)


if __name__ == "__main__":
    main()
