"""Train the foreign robots of examples/ by their default commands, and judge what they learned within a time.

    uv run benchmarks/examples.py
    uv run benchmarks/examples.py --examples hopper --seeds 5 6

The time counts from Enter to the time stamp of the checkpoint that is judged, without exploration noise and over 200
episodes. Exits with 1 if a bar is missed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import mjtrain
from mjtrain.mdp import Env

EXAMPLES = Path(__file__).parents[1] / "examples"
NUM_EPISODES = 200
Policy = Callable[[dict[str, torch.Tensor]], torch.Tensor]


@dataclass(frozen=True)
class Goal:
    """What an example must reach, and when."""

    limit_s: float
    """Seconds from Enter to the checkpoint."""

    judge: Callable[[Env, Policy], dict[str, float]]
    """Figures of a policy over one episode in each world."""

    bars: dict[str, tuple[float, float]]
    """Least and greatest value of figures."""


def judge_distance(env: Env, policy: Policy) -> dict[str, float]:
    """Distance along x, whether or not an episode ends early, and how many episodes last to their end."""
    joint = "root" if "root" in env.engine.layout.qpos else "rootx"
    done, distance = torch.zeros(env.num_envs, dtype=torch.bool), torch.zeros(env.num_envs)
    for _ in range(env.max_episode_steps - 1):
        _, _, terminated, truncated = env.step(policy(env.observe()))
        done |= terminated | truncated
        distance = torch.where(done, distance, env.qpos(joint)[:, 0] - env.start_qpos[:, 0])
    seconds = env.max_episode_steps * env.step_dt
    return {
        "distance, m": float(distance.mean()),
        "speed, m/s": float(distance.mean()) / seconds,
        "full episodes, %": 100 * float((~done).float().mean()),
    }


def judge_reaching(env: Env, policy: Policy) -> dict[str, float]:
    """Distance of the finger from the target, later than one second after each draw."""
    errors = []
    since = torch.zeros(env.num_envs)
    target = env.command("target").clone()
    for _ in range(env.max_episode_steps - 1):
        env.step(policy(env.observe()))
        changed = (env.command("target") != target).any(dim=1)
        since = torch.where(changed, 0.0, since + env.step_dt)
        target = env.command("target").clone()
        distance = env.command_error("target", "distance")
        errors.append(distance[since > 1.0])
    return {"error, cm": 100 * float(torch.cat(errors).mean())}


GOALS = {
    "hopper": Goal(240.0, judge_distance, {"distance, m": (15.0, float("inf")), "full episodes, %": (95.0, 100.0)}),
    "cheetah": Goal(600.0, judge_distance, {"speed, m/s": (6.0, float("inf"))}),
    "reacher": Goal(60.0, judge_reaching, {"error, cm": (0.0, 4.0)}),
    "ant": Goal(600.0, judge_distance, {"distance, m": (0.0, float("inf"))}),
}


def train(example: str, seed: int, log_root: str) -> Path:
    """Run the default command until its time is over; return the last checkpoint that was written within it."""
    limit_s = GOALS[example].limit_s
    command = [str(Path(sys.executable).parent / "train"), str(EXAMPLES / f"{example}.py"), "--gpu-ids", "None"]
    command += ["--seed", str(seed), "--agent.save-interval", "10", "--log-root", log_root]
    begin = time.time()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
    checkpoints = [path for path in Path(log_root).rglob("model_*.pt") if path.stat().st_mtime <= begin + limit_s]
    return max(checkpoints, key=os.path.getmtime)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", nargs="+", choices=list(GOALS), default=list(GOALS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    args = parser.parse_args()
    missed = False
    print("| example | within, s | figure | median | by seed | bar |\n|---|---|---|---|---|---|")
    for example in args.examples:
        goal, figures = GOALS[example], []
        for seed in args.seeds:
            with tempfile.TemporaryDirectory() as log_root:
                checkpoint = train(example, seed, log_root)
                policy = mjtrain.load_policy(checkpoint.parent, checkpoint=str(checkpoint))
                env = mjtrain.make_env(str(EXAMPLES / f"{example}.py"), num_envs=NUM_EPISODES, seed=1000 + seed)
                figures.append(goal.judge(env, policy))
        for name in figures[0]:
            values = [figure[name] for figure in figures]
            low, high = goal.bars.get(name, (float("-inf"), float("inf")))
            missed |= not all(low <= value <= high for value in values)
            bar = f"{low:g} to {high:g}" if name in goal.bars else ""
            by_seed = ", ".join(f"{value:.1f}" for value in values)
            print(f"| {example} | {goal.limit_s:g} | {name} | {statistics.median(values):.1f} | {by_seed} | {bar} |")
    sys.exit(int(missed))


if __name__ == "__main__":
    main()
