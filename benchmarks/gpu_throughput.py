"""Env steps per second of training with the warp engine, against nothing but its replayed physics steps: a table row.

    uv run benchmarks/gpu_throughput.py --task Quadruped-Velocity-Flat --num-envs 4096
    uv run benchmarks/gpu_throughput.py --task Cartpole-Balance --num-envs 64 --device cpu --num-iterations 2

`benchmarks/gpu.sh` calls it for every task and size. Training and raw physics take turns. Raw means `engine.step`
alone: the graph of an env step's physics, with controls that stay as they are; the GPU is waited for before and after.
"reset / raw" is what a reset of one world costs, as time of such a step: a forward pass of all worlds.
"""

import argparse
import statistics
import tempfile
import time

import torch

from mjtrain import LaunchConfig, RankContext, TrainConfig, launch, train
from mjtrain.api import make_train_config
from mjtrain.config import ImitationConfig
from mjtrain.env.env import Env
from mjtrain.learning.rsl_rl.construct import Runner
from mjtrain.runs.teacher import resolve_teacher
from mjtrain.training.train_rank import make_env

COLUMNS = (
    "task",
    "envs",
    "training, env steps/s",
    "collecting, env steps/s",
    "raw physics, env steps/s",
    "collecting / raw",
    "reset / raw",
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
    training, collecting, raw, resets, missed = [], [], [], [], [0, 0]
    num_steps = config.agent.num_steps_per_env
    for metrics in (result.metrics for result in iterations):
        training.append(metrics["env_steps_per_second"])
        collecting.append(config.num_envs * num_steps / metrics["collect_time_s"])
        missed = [max(missed[0], metrics["overflow/contacts"]), max(missed[1], metrics["overflow/constraints"])]
        raw_s, resets_s = time_physics(env, num_steps)
        raw.append(config.num_envs * num_steps / raw_s)
        resets.append(resets_s / raw_s)
    speeds = [statistics.median(values) for values in (training, collecting, raw)]
    memory = "-"
    if env.device.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        memory = f"{(total - free) / 1e9:.1f} GB"
    env.close()
    shares = (speeds[1] / speeds[2], statistics.median(resets))
    cells = [f"{speed:,.0f}" for speed in speeds] + [f"{share:.0%}" for share in shares]
    return (*cells, memory, f"{missed[0]}, {missed[1]}")


def time_physics(env: Env, num_steps: int) -> tuple[float, float]:
    """Time env steps of nothing but physics, and as many resets of one world; the worlds are then as they were before.

    Returns:
        Seconds of all steps, and of all resets.
    """
    engine = env.engine
    before = engine.state_dict()
    ctrl, qpos, qvel = (tensor.clone() for tensor in (env.state.ctrl, env.state.qpos, env.state.qvel))
    first = torch.arange(env.num_envs, device=env.device) == 0
    spent_s = []
    for call in (lambda: engine.step(ctrl, env.config.decimation), lambda: engine.reset(first, qpos, qvel)):
        wait(env)
        begin = time.perf_counter()
        for _ in range(num_steps):
            call()
        wait(env)
        spent_s.append(time.perf_counter() - begin)
    engine.load_state_dict(before)
    return spent_s[0], spent_s[1]


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
    where = LaunchConfig(gpu_ids=(0,) if arguments.device == "gpu" else None)
    with tempfile.TemporaryDirectory() as runs:
        config = make_train_config(arguments.task, num_envs=arguments.num_envs, engine="warp", log_root=runs)
        if isinstance(config.agent.algorithm, ImitationConfig):  # what its teacher knows does not change the time
            options = {"num_envs": 16, "max_iterations": 1, "engine": "native", "logger": "none", "log_root": runs}
            train(config.agent.algorithm.teacher_task, launch=LaunchConfig(gpu_ids=None), **options)
        cells = launch(measure, resolve_teacher(config), arguments.num_iterations, launch=where)
    print(f"| {' | '.join((arguments.task, f'{arguments.num_envs:,}', *cells))} |")


if __name__ == "__main__":
    main()
