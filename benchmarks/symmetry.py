"""Measure what learning from mirror images costs, and after how many env steps runs are good enough.

    uv run benchmarks/symmetry.py                              # CPU time per iteration, by settings; a minute
    uv run benchmarks/symmetry.py --runs logs/quadruped_velocity_flat/2026-*    # the first checkpoint that is good

CPU time is that of this process on one thread, so that other work on the machine hardly counts.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from speedrun import find_finish

from mjtrain import LaunchConfig, PpoConfig, RankContext, SymmetryConfig, launch
from mjtrain.api import make_train_config
from mjtrain.learning.rsl_rl.construct import Runner
from mjtrain.training.train_rank import make_env

TASK = "Quadruped-Velocity-Flat"
SETTINGS: dict[str, dict[str, Any]] = {
    "without": {"symmetry_cfg": SymmetryConfig()},
    "equivariant networks": {"symmetry_cfg": SymmetryConfig(use_equivariant_networks=True)},
    "augmentation": {"symmetry_cfg": SymmetryConfig(use_data_augmentation=True)},
    "augmentation, 3 epochs": {"symmetry_cfg": SymmetryConfig(use_data_augmentation=True), "num_learning_epochs": 3},
    "mirror loss": {"symmetry_cfg": SymmetryConfig(use_mirror_loss=True)},
    "both": {"symmetry_cfg": SymmetryConfig(use_data_augmentation=True, use_mirror_loss=True)},
}


def measure(context: RankContext, num_iterations: int) -> dict[str, tuple[float, float]]:
    """Return the CPU time of an iteration and of its learning, in s, by settings; medians."""
    config = make_train_config(TASK, num_envs=512)
    env = make_env(context, config)
    found = {}
    for name, changes in SETTINGS.items():
        assert isinstance(config.agent.algorithm, PpoConfig)
        agent = replace(config.agent, algorithm=replace(config.agent.algorithm, **changes))
        runner = Runner(context, env, agent)
        update, learning, whole = runner.alg.update, [], []

        def timed(update: Any = update, learning: list[float] = learning) -> dict[str, float]:
            begin = time.process_time()
            losses = update()
            learning.append(time.process_time() - begin)
            return losses

        runner.alg.update = timed
        begin = time.process_time()
        for _ in runner.iterate(num_iterations):
            whole.append(time.process_time() - begin)
            begin = time.process_time()
        found[name] = statistics.median(whole), statistics.median(learning)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="*", type=Path, default=[], help="run directories with many checkpoints")
    parser.add_argument("--iterations", type=int, default=5)
    arguments = parser.parse_args()
    if not arguments.runs:
        print(f"{'CPU s per iteration':28}{'all':>8}{'learning':>10}")
        found = launch(measure, arguments.iterations, launch=LaunchConfig(gpu_ids=None, num_threads=1))
        for name, (whole, learning) in found.items():
            print(f"{name:28}{whole:8.2f}{learning:10.2f}")
    for run_dir in arguments.runs:
        seed = yaml.safe_load((run_dir / "params" / "launch.yaml").read_text())["launch"]["seed"]
        finish = find_finish(TASK, seed, run_dir, begin=0.0)
        print(f"{run_dir}: " + ("none" if finish is None else f"{finish.env_steps:,} env steps, {finish.checkpoint}"))


if __name__ == "__main__":
    main()
