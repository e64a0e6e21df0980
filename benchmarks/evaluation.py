"""What evaluation costs a training: CPU time of an evaluation against that of an iteration.

    uv run benchmarks/evaluation.py Cartpole-Balance --learn 30
    uv run benchmarks/evaluation.py Quadruped-Velocity-Flat --load logs/quadruped_velocity_flat/…/model_300.pt

CPU time is that of the whole process, all threads, so other work on the machine hardly matters. The wall time of both
is compared too; an evaluation uses fewer threads than an iteration. Untrained policies fall early and are cheap to
evaluate: learn first, or load what has learned.
"""

import argparse
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.evaluation.evaluator import Evaluator
from mjtrain.learning.library import make_learner
from mjtrain.runtime.worker import rank_scope
from mjtrain.training.train_rank import make_env

WARM_UP = 2


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--load", help="checkpoint to begin with")
    parser.add_argument("--learn", type=int, default=8, help="iterations; the last ones are measured")
    parser.add_argument("--measured", type=int, default=6, help="iterations that are measured")
    parser.add_argument("--episodes", nargs="+", type=int, default=[32])
    parser.add_argument("--intervals", nargs="+", type=int, default=[25, 50, 100])
    args = parser.parse_args()
    context = mjtrain.RankContext(seed=1, num_threads=len(os.sched_getaffinity(0)))
    config = make_train_config(args.task)
    with rank_scope(context, None):
        learner = make_learner(context, make_env(context, config), config.agent, config.learner)
        if args.load is not None:
            learner.load_weights(Path(args.load))
        times, before = [], now()
        for _ in learner.iterate(args.learn):
            after = now()
            times.append([end - begin for begin, end in zip(before, after, strict=True)])
            before = after
        measured = times[WARM_UP:][-args.measured :]
        iteration = [statistics.median(column) for column in zip(*measured, strict=True)]
        print(f"{args.task}: {config.num_envs} environments, {iteration[0]:.2f} CPU-s per iteration")
        for episodes in args.episodes:
            measure(context, config, episodes, learner.policy_weights(), iteration, args.intervals)


def now() -> tuple[float, float]:
    """CPU time of this process and wall time, in seconds."""
    return time.process_time(), time.perf_counter()


def measure(context, config, episodes, weights, iteration, intervals) -> None:
    """Evaluate twice and print the second: the first one loads code."""
    evaluator = Evaluator(context, replace(config, run=replace(config.run, eval_interval=1, eval_episodes=episodes)))
    evaluator.evaluate(weights)
    before = now()
    metrics = evaluator.evaluate(weights)
    cost = [end - begin for begin, end in zip(before, now(), strict=True)]
    evaluator.close()
    assert metrics is not None
    in_iterations = [spent / each for spent, each in zip(cost, iteration, strict=True)]
    shares = ", ".join(f"{100 * in_iterations[0] / every:.1f} % every {every}" for every in intervals)
    print(
        f"{metrics['eval/episodes']} episodes of {metrics['eval/length']:.0f} env steps, return "
        f"{metrics['eval/return']:.2f}: {cost[0]:.2f} CPU-s, as {in_iterations[0]:.1f} iterations "
        f"({in_iterations[1]:.1f} in wall time); {shares}"
    )


if __name__ == "__main__":
    main()
