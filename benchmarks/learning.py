"""Train the built-in tasks by their default commands, over several seeds, and write docs/results.md and its pictures.

    uv run benchmarks/learning.py                                       # every task and seed: two hours on two cores
    uv run benchmarks/learning.py --tasks Cartpole-Balance --seeds 7 8
    uv run benchmarks/learning.py --tasks Quadruped-Velocity-Flat --write    # and replace its part of docs/results.md
    uv run benchmarks/learning.py --tasks Arm-Reach --runs logs/arm_reach/2026-*     # judge runs that are there

Each run is the command a user types. Afterwards its last checkpoint is judged without exploration noise over 200
episodes (judges.py). Exits with 1 if a bar is missed.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from judges import GOALS, Goal

from mjtrain import LaunchConfig, RankContext, Run, launch
from mjtrain.api import make_train_config
from mjtrain.learning.library import make_policy
from mjtrain.runs.checkpoint import load_checkpoint
from mjtrain.runs.run import Rows
from mjtrain.tools.plotting import Group, RunCurves, draw_curves, elapsed_s
from mjtrain.training.train_rank import make_env

DOCS = Path(__file__).parents[1] / "docs"
NUM_EPISODES = 200


def train(task: str, seed: int, extra: list[str]) -> tuple[Path, Rows, float]:
    """Run the command; return the run directory, its metrics and the wall time from Enter to the end."""
    command = [str(Path(sys.executable).parent / "train"), task, "--gpu-ids", "None", "--seed", str(seed), *extra]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - begin
    if done.returncode != 0:
        sys.exit(done.stderr)
    match = re.search(r"^run directory: (.*)$", done.stderr, re.MULTILINE)
    assert match is not None
    run_dir = Path(match[1])
    return run_dir, read_rows(run_dir), wall_s


def read_run(run_dir: Path) -> tuple[int, Rows]:
    """Return the seed and the metrics of a run that already exists."""
    seed = yaml.safe_load((run_dir / "params" / "launch.yaml").read_text())["launch"]["seed"]
    return seed, read_rows(run_dir)


def read_rows(run_dir: Path) -> Rows:
    """Read the iterations of a run."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "event" not in row]


def judge(context: RankContext, task: str, checkpoint: Path, last: dict[str, Any]) -> tuple[list[float], int]:
    """Judge a checkpoint over one episode in each of many worlds; return the figures and the longest episode.

    The worlds are those of the task, whatever the run had; the networks and the motion to imitate are those of the run.
    """
    goal, run = GOALS[task], Run(checkpoint.parent)
    config = make_train_config(task, num_envs=NUM_EPISODES)
    motion = {name: term for name, term in run.config.env.commands.items() if name == "motion"}
    quiet = replace(config.env, observation_noise=False, commands=config.env.commands | motion)
    config = replace(config, env=quiet if goal.adapt is None else goal.adapt(quiet, last))
    env = make_env(context, config)
    content = load_checkpoint(checkpoint, context.device)
    policy = make_policy(run.config.agent, run.config.learner, env.observe(), env.num_actions)
    policy.load(content, checkpoint)
    env.reset(torch.ones(NUM_EPISODES, dtype=torch.bool))
    with torch.inference_mode():
        figures = goal.judge(env, policy)
    return figures, env.max_episode_steps


def draw(task: str, goal: Goal, runs: dict[int, Rows]) -> Path:
    """Plot the learning curves of all seeds over training time."""
    path = DOCS / f"learning_{task.lower()}.png"
    curves = {seed: RunCurves(name=f"seed {seed}", rows=rows, settings={}) for seed, rows in runs.items()}
    groups = [Group(label=run.name, runs=(run,)) for run in curves.values()]
    draw_curves(groups, [goal.curve], "wall-time", path, title=task)
    return path


def write(task: str, lines: list[str]) -> None:
    """Put the lines into the task's part of docs/results.md."""
    results = DOCS / "results.md"
    text = results.read_text()
    begin, end = f"<!-- learning {task}: begin -->", f"<!-- learning {task}: end -->"
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    results.write_text(f"{head}{begin}\n" + "\n".join(lines) + f"\n{end}{tail}")


def measure(
    task: str, seeds: list[int] | None, runs: list[Path], extra: list[str]
) -> tuple[list[str], dict[int, Rows], bool]:
    """Train (or read) and judge every seed of a task; return the table, the metrics, and whether all bars were met."""
    goal = GOALS[task]
    bars = " | ".join(measure.heading() for measure in goal.measures)
    lines = [
        f"### {task}: within {goal.within_s:g} s",
        "",
        f"| seed | threads | {goal.threshold}, reached after s | iterations | training, s | Enter to end, s | {bars} |",
        "|---" * (6 + len(goal.measures)) + "|",
    ]
    curves: dict[int, Rows] = {}
    all_met = True
    for source in runs or (seeds if seeds is not None else goal.seeds):
        if isinstance(source, Path):
            run_dir, wall_s = source, None
            seed, rows = read_run(run_dir)
        else:
            seed = source
            run_dir, rows, wall_s = train(task, seed, extra)
        curves[seed] = rows
        checkpoint = run_dir / f"model_{rows[-1]['iteration']}.pt"
        where = LaunchConfig(gpu_ids=None, seed=1000 + seed)
        figures, longest = launch(judge, task, checkpoint, rows[-1], launch=where)
        times = elapsed_s(rows)
        reached = next(
            (f"{at:.0f}" for at, row in zip(times, rows, strict=True) if goal.reached(row, longest)), "never"
        )
        met = [bar.met(figure) for bar, figure in zip(goal.measures, figures, strict=True)]
        all_met &= all(met) and (wall_s or times[-1]) < goal.within_s and reached != "never"
        cells = [f"{figure:.3f}" + ("" if good else " (missed)") for figure, good in zip(figures, met, strict=True)]
        if goal.curve.startswith("curriculum/"):
            reached += f" (level {rows[-1][goal.curve]:.2f} at the end)"
        threads = yaml.safe_load((run_dir / "params" / "launch.yaml").read_text())["plan"]["ranks"][0]["num_threads"]
        wall = "-" if wall_s is None else f"{wall_s:.0f}"
        lines.append(
            f"| {seed} | {threads} | {reached} | {len(rows)} | {times[-1]:.0f} | {wall} | {' | '.join(cells)} |"
        )
        print(lines[-1], flush=True)
    return lines, curves, all_met


def main() -> None:
    """Train, judge, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=list(GOALS), choices=list(GOALS))
    parser.add_argument("--seeds", nargs="*", type=int, default=None, help="default: those of docs/results.md")
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="run directories to judge instead of training")
    parser.add_argument("--write", action="store_true", help="put tables and pictures into docs/")
    parser.add_argument("extra", nargs="*", help="after --: flags for train, such as --engine warp")
    arguments = parser.parse_args()
    all_met = True
    for task in arguments.tasks:
        lines, curves, met = measure(task, arguments.seeds, arguments.runs, arguments.extra)
        all_met &= met
        if arguments.write:
            picture = draw(task, GOALS[task], curves)
            write(task, [*lines, "", f"![learning curves of {task}]({picture.name})", ""])
    sys.exit(0 if all_met else 1)


if __name__ == "__main__":
    main()
