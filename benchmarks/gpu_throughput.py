"""Env steps per second of training with the warp engine, against nothing but its replayed physics steps: a table row.

    uv run benchmarks/gpu_throughput.py --task Quadruped-Velocity-Flat --num-envs 4096
    uv run benchmarks/gpu_throughput.py --task Cartpole-Balance --num-envs 64 --device cpu --num-iterations 2

`benchmarks/gpu.sh` calls it for every task and size. Training and raw physics take turns. Raw means `engine.step`
alone: the graph of an env step's physics, with controls that stay as they are; the GPU is waited for before and after.
"""

import argparse
import statistics
import time

import torch

from mjtrain import LaunchConfig, RankContext, TrainConfig, launch
from mjtrain.api import make_train_config
from mjtrain.env.env import Env
from mjtrain.rl.runner import Runner
from mjtrain.training import make_env

COLUMNS = (
    "task",
    "envs",
    "training, env steps/s",
    "collecting, env steps/s",
    "raw physics, env steps/s",
    "collecting / raw",
    "GPU memory in use",
    "worlds without room (contacts, constraints)",
)


def measure(context: RankContext, config: TrainConfig, num_iterations: int) -> tuple[str, ...]:
    """Train, and between iterations time the raw physics; returns the cells of the row after task and envs."""
    env = make_env(context, config)
    runner = Runner(context, env, config.agent)
    iterations = runner.iterate(num_iterations + 2)
    for _ in range(2):  # kernels, graphs, first allocations
        next(iterations)
    training, collecting, raw, missed = [], [], [], [0, 0]
    num_steps = config.agent.num_steps_per_env
    for metrics in (result.metrics for result in iterations):
        training.append(metrics["env_steps_per_second"])
        collecting.append(config.num_envs * num_steps / metrics["collect_time_s"])
        missed = [max(missed[0], metrics["overflow/contacts"]), max(missed[1], metrics["overflow/constraints"])]
        raw.append(config.num_envs * num_steps / time_physics(env, num_steps))
    speeds = [statistics.median(values) for values in (training, collecting, raw)]
    memory = "-"
    if env.device.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        memory = f"{(total - free) / 1e9:.1f} GB"
    cells = (
        *(f"{speed:,.0f}" for speed in speeds),
        f"{speeds[1] / speeds[2]:.0%}",
        memory,
        f"{missed[0]}, {missed[1]}",
    )
    env.close()
    return cells


def time_physics(env: Env, num_steps: int) -> float:
    """Return the seconds of so many env steps of nothing but physics; the worlds are then as they were before."""
    before = env.engine.state_dict()
    ctrl = env.state.ctrl.clone()
    wait(env)
    begin = time.perf_counter()
    for _ in range(num_steps):
        env.engine.step(ctrl, env.config.decimation)
    wait(env)
    spent_s = time.perf_counter() - begin
    env.engine.load_state_dict(before)
    return spent_s


def wait(env: Env) -> None:
    """Wait for what is queued on a GPU."""
    if env.device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="Quadruped-Velocity-Flat")
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--num-iterations", type=int, default=10)
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--head", action="store_true", help="print the head of the table and nothing else")
    arguments = parser.parse_args()
    if arguments.head:
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        return
    config = make_train_config(arguments.task, num_envs=arguments.num_envs, engine="warp")
    where = LaunchConfig(gpu_ids=(0,) if arguments.device == "gpu" else None)
    cells = launch(measure, config, arguments.num_iterations, launch=where)
    print(f"| {' | '.join((arguments.task, f'{arguments.num_envs:,}', *cells))} |")


if __name__ == "__main__":
    main()
