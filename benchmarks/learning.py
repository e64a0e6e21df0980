"""Train the built-in tasks by their default commands, over several seeds, and write the table of docs/results.md.

    uv run benchmarks/learning.py                          # every task and seed, about ten minutes on two cores
    uv run benchmarks/learning.py --tasks Cartpole-Balance --seeds 7 8

Each run is the command a user types. Afterwards its last checkpoint is judged without exploration noise.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mjtrain import LaunchConfig, RankContext, launch
from mjtrain.api import make_train_config
from mjtrain.env.env import Env
from mjtrain.rl.runner import Runner
from mjtrain.training import make_env

RESULTS = Path(__file__).parents[1] / "docs" / "results.md"
NUM_EPISODES = 200


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a task promises."""

    seeds: tuple[int, ...]
    measure: str
    bar: str
    threshold: str
    reached: Callable[[dict[str, Any], int], bool]
    judge: Callable[[Env, Callable[[Any], torch.Tensor]], float]


def judge_length(env: Env, policy: Callable[[Any], torch.Tensor]) -> float:
    """Return the mean length of one episode per world, as a fraction of the longest possible."""
    alive = torch.ones(env.num_envs, dtype=torch.bool)
    lengths = torch.zeros(env.num_envs)
    for _ in range(env.max_episode_steps):
        _, _, terminated, _ = env.step(policy(env.observe()))
        lengths += alive
        alive &= ~terminated
    return lengths.mean().item() / env.max_episode_steps


def judge_upright(env: Env, policy: Callable[[Any], torch.Tensor]) -> float:
    """Return the mean cosine of the pole's angle over the last second of one episode per world."""
    last_second = round(1.0 / env.step_dt)
    cosines = []
    for step in range(env.max_episode_steps - 1):  # the very last env step already shows the next episode
        env.step(policy(env.observe()))
        if step >= env.max_episode_steps - 1 - last_second:
            cosines.append(env.qpos("hinge")[:, 0].cos().mean().item())
    return sum(cosines) / len(cosines)


GOALS = {
    "Cartpole-Balance": Goal(
        seeds=(0, 1, 2, 3, 4),
        measure="episode length / longest",
        bar="mean_episode_length at 98 % of the longest within 60 s",
        threshold="98 % of the longest episode",
        reached=lambda metrics, longest: (metrics["mean_episode_length"] or 0) >= 0.98 * longest,
        judge=judge_length,
    ),
    "Cartpole-Swingup": Goal(
        seeds=(0, 1, 2),
        measure="cos(pole), last second",
        bar="mean cosine over the last second above 0.9 within 300 s",
        threshold="a return above 9 of 12",
        reached=lambda metrics, _: (metrics["mean_reward"] or 0) > 9,
        judge=judge_upright,
    ),
}


def train(task: str, seed: int, extra: list[str]) -> tuple[Path, list[dict[str, Any]], float]:
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
    return run_dir, [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()], wall_s


def evaluate(context: RankContext, task: str, checkpoint: Path) -> tuple[float, int]:
    """Judge a checkpoint over one episode in each of many worlds; return the score and the longest episode."""
    config = make_train_config(task, num_envs=NUM_EPISODES)
    env = make_env(context, config)
    runner = Runner(context, env, config.agent)
    runner.load_weights(checkpoint)
    runner.alg.eval_mode()
    env.reset(torch.ones(NUM_EPISODES, dtype=torch.bool))
    with torch.inference_mode():
        return GOALS[task].judge(env, runner.alg.get_policy()), env.max_episode_steps


def main() -> None:
    """Train, judge, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=list(GOALS), choices=list(GOALS))
    parser.add_argument("--seeds", nargs="*", type=int, default=None, help="default: those of docs/results.md")
    parser.add_argument("--write", action="store_true", help="put the table into docs/results.md")
    parser.add_argument("extra", nargs="*", help="after --: flags for train, such as --engine warp")
    arguments = parser.parse_args()
    lines = []
    for task in arguments.tasks:
        goal = GOALS[task]
        lines += [
            f"### {task}: {goal.bar}",
            "",
            f"| seed | {goal.threshold}, reached after s | iterations | training, s | Enter to end, s "
            f"| {goal.measure} |",
            "|---|---|---|---|---|---|",
        ]
        for seed in arguments.seeds if arguments.seeds is not None else goal.seeds:
            run_dir, rows, wall_s = train(task, seed, arguments.extra)
            checkpoint = run_dir / f"model_{rows[-1]['iteration']}.pt"
            judging = LaunchConfig(gpu_ids=None, seed=1000 + seed)
            score, longest = launch(evaluate, task, checkpoint, launch=judging)
            elapsed_s, reached_s = 0.0, None
            for row in rows:
                elapsed_s += row["collect_time_s"] + row["learn_time_s"]
                if reached_s is None and goal.reached(row, longest):
                    reached_s = elapsed_s
            reached = "never" if reached_s is None else f"{reached_s:.1f}"
            lines.append(f"| {seed} | {reached} | {len(rows)} | {elapsed_s:.1f} | {wall_s:.1f} | {score:.3f} |")
            print(lines[-1], flush=True)
        lines.append("")
    if arguments.write:
        text = RESULTS.read_text()
        begin, end = "<!-- learning: begin -->", "<!-- learning: end -->"
        head, tail = text.split(begin)[0], text.split(end)[1]
        machine = f"Measured on {torch.get_num_threads()} cores, {platform.machine()}, torch {torch.__version__}."
        RESULTS.write_text(f"{head}{begin}\n{machine}\n\n" + "\n".join(lines) + f"{end}{tail}")


if __name__ == "__main__":
    main()
