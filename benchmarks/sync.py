"""What staying in step costs: the collectives of an iteration, and their share of its time, ours beside RSL-RL's.

    uv run benchmarks/sync.py                                      # nets of 512-256-128, two CPU ranks
    uv run benchmarks/sync.py --hidden-dims 64 64 --num-envs 1024

Two ranks over gloo, each with one thread; the times are those of rank 0. "RSL-RL" is its own PPO and its own
normalisers in the same loop, without equivariant networks, which drift there. "late" is the part of the time in
collectives in which the other rank had not come yet; what is left is the transport.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from mjtrain import LaunchConfig, PpoConfig, RankContext, SymmetryConfig, TrainConfig, launch
from mjtrain.api import make_train_config
from mjtrain.learning.rsl_rl.construct import Runner
from mjtrain.training.train_rank import make_env

COLLECTIVES = ("all_reduce", "broadcast", "all_gather_into_tensor", "all_gather")
WARM_UP = 3


def measure(context: RankContext, config: TrainConfig, num_iterations: int) -> dict[str, Any]:
    """Train, and count and time every collective."""
    runner = Runner(context, make_env(context, config), config.agent)
    iterations = runner.iterate(WARM_UP + num_iterations)
    for _ in range(WARM_UP):
        next(iterations)
    counts: Counter[str] = Counter()
    begins: list[float] = []  # of each collective, by a clock that all processes of this host share
    spent_s = 0.0

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal spent_s
            begins.append(time.monotonic())
            result = function(*args, **kwargs)
            spent_s += time.monotonic() - begins[-1]
            counts[name] += 1
            return result

        return wrapper

    functions = {name: getattr(dist, name) for name in COLLECTIVES}
    for name, function in functions.items():
        setattr(dist, name, counted(name, function))
    shares, spent, totals, slices = [], [], [], []
    for _ in range(num_iterations):
        before_s, begin, first = spent_s, time.perf_counter(), len(begins)
        next(iterations)
        total_s = time.perf_counter() - begin
        shares.append((spent_s - before_s) / total_s)
        spent.append(spent_s - before_s)
        totals.append(total_s)
        slices.append(slice(first, len(begins)))
    for name, function in functions.items():
        setattr(dist, name, function)
    arrivals = torch.tensor(begins, dtype=torch.float64)
    by_rank = [torch.empty_like(arrivals) for _ in range(context.world_size)]
    dist.all_gather(by_rank, arrivals)
    late_s = torch.stack(by_rank).amax(dim=0) - arrivals
    counts_per_iteration = {name: count / num_iterations for name, count in counts.items()}
    before = time.perf_counter()
    for _ in range(10):
        runner.check_drift()
    drift_s = (time.perf_counter() - before) / 10
    return {
        "counts": counts_per_iteration,
        "share": statistics.median(shares),
        "spent_s": statistics.median(spent),
        "late_s": statistics.median(late_s[part].sum().item() for part in slices),
        "iteration_s": statistics.median(totals),
        "drift_s": drift_s,
    }


def main() -> None:
    """Measure both and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="Cartpole-Balance")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--hidden-dims", type=int, nargs="+", default=[512, 256, 128])
    parser.add_argument("--num-iterations", type=int, default=20)
    arguments = parser.parse_args()
    config = make_train_config(arguments.task, num_envs=arguments.num_envs)
    actor, critic = (
        replace(model, hidden_dims=tuple(arguments.hidden_dims)) for model in (config.agent.actor, config.agent.critic)
    )
    widths = {
        "collectives": 12,
        "in them, ms": 13,
        "late, ms": 10,
        "iteration, ms": 15,
        "share, %": 10,
        "drift check, ms": 17,
        "%": 7,
    }
    print(" " * 10 + "".join(f"{title:>{width}}" for title, width in widths.items()))
    for name, class_name in (("mjtrain", "mjtrain.learning.rsl_rl.ppo:Ppo"), ("RSL-RL", "PPO")):
        assert isinstance(config.agent.algorithm, PpoConfig)
        symmetry = config.agent.algorithm.symmetry_cfg if name == "mjtrain" else SymmetryConfig()
        algorithm = replace(config.agent.algorithm, class_name=class_name, symmetry_cfg=symmetry)
        agent = replace(config.agent, actor=actor, critic=critic, algorithm=algorithm)
        where = LaunchConfig(gpu_ids=None, num_workers=2, num_threads=1)
        result = launch(measure, replace(config, agent=agent), arguments.num_iterations, launch=where)
        print(
            f"{name:10}{sum(result['counts'].values()):12.0f}{1e3 * result['spent_s']:13.1f}"
            f"{1e3 * result['late_s']:10.1f}{1e3 * result['iteration_s']:15.1f}{100 * result['share']:10.1f}"
            f"{1e3 * result['drift_s']:17.2f}{100 * result['drift_s'] / result['iteration_s']:7.2f}"
            f"   {', '.join(f'{count:.0f} {kind}' for kind, count in result['counts'].items())}"
        )


if __name__ == "__main__":
    main()
