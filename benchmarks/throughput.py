"""Env steps per second of training, beside raw mujoco.rollout on the same model, states and threads in the same run.

    uv run benchmarks/throughput.py                       # Cartpole-Balance: 1,024 envs, nets 64x64, 24 steps
    uv run benchmarks/throughput.py --task Cartpole-Swingup --num-envs 4096 --num-threads 1
    uv run benchmarks/throughput.py --task Quadruped-Velocity-Flat --num-envs 256 --nets 512 256 128
    uv run benchmarks/throughput.py --gpu-ids 0           # warp engine with CUDA graphs

Prints a table, where the time of collecting goes, and writes JSON (--json). Rollout and training take turns, so that a
machine whose speed drifts slows both. On a GPU every timed function waits for the GPU before and after, so that the
table shows work and not launches; speeds are then lower than those of a training that does not wait.
"""

import argparse
import json
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from mujoco.rollout import Rollout

from mjtrain import LaunchConfig, PpoConfig, RankContext, TrainConfig, launch
from mjtrain.api import make_train_config
from mjtrain.env.env import Env
from mjtrain.learning.rsl_rl.construct import Runner
from mjtrain.sim.robots.model import load_model
from mjtrain.training.hooks.profile import PhaseTimer
from mjtrain.training.train_rank import make_env


class RawRollout:
    """Steps the same worlds with nothing but mujoco.rollout."""

    def __init__(self, config: TrainConfig, num_threads: int, env: Env) -> None:
        model = load_model(config.env)
        qpos, qvel, ctrl = (getattr(env.state, name).double().cpu().numpy() for name in ("qpos", "qvel", "ctrl"))
        num_envs, decimation = config.num_envs, config.env.decimation
        self.data = [mujoco.MjData(model) for _ in range(num_threads)]
        kind = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
        initial = np.empty(mujoco.mj_stateSize(model, kind))
        mujoco.mj_getState(model, self.data[0], initial, kind)
        self.states = np.tile(initial, (num_envs, 1))
        self.states[:, 1 : 1 + model.nq] = qpos
        self.states[:, 1 + model.nq : 1 + model.nq + model.nv] = qvel
        self.models = [model] * num_envs
        self.ctrl = np.repeat(ctrl[:, None], decimation, axis=1)
        self.trajectory = np.empty((num_envs, decimation, initial.size))
        self.sensors = np.empty((num_envs, decimation, model.nsensordata))
        self.pool = Rollout(nthread=num_threads if num_threads > 1 else 0)

    def env_steps_per_second(self, num_steps: int) -> float:
        """Time so many env steps of every world, always from the same states."""
        begin = time.perf_counter()
        for _ in range(num_steps):
            self.pool.rollout(
                self.models,
                self.data,
                self.states,
                self.ctrl,
                nstep=self.ctrl.shape[1],
                state=self.trajectory,
                sensordata=self.sensors,
                skip_checks=True,
            )
        return num_steps * len(self.models) / (time.perf_counter() - begin)


def measure(context: RankContext, config: TrainConfig, num_threads: int, num_iterations: int) -> dict[str, Any]:
    """Train, and between iterations time the raw physics."""
    env = make_env(context, config)
    runner = Runner(context, env, config.agent)
    timer = PhaseTimer(env.device)
    timer.watch("physics steps", env.engine, "step")
    timer.watch("physics resets", env.engine, "reset")
    timer.watch("environment", env, "step")
    timer.watch("networks: actor and critic", runner.alg, "act")
    timer.watch("storage", runner.alg, "process_env_step")
    iterations = runner.iterate(num_iterations + 3)
    for _ in range(3):  # kernels, caches, first allocations
        next(iterations)
    timer.spent_s.clear()
    raw = RawRollout(config, num_threads, env)
    figures: dict[str, Any] = {"overall": [], "collect": [], "raw": [], "collect_share_of_raw": []}
    num_env_steps = config.num_envs * config.agent.num_steps_per_env
    collect_s = 0.0
    for metrics in (result.metrics for result in iterations):
        raw_speed = raw.env_steps_per_second(config.agent.num_steps_per_env)
        collect_speed = num_env_steps / metrics["collect_time_s"]
        collect_s += metrics["collect_time_s"]
        figures["overall"].append(metrics["env_steps_per_second"])
        figures["collect"].append(collect_speed)
        figures["raw"].append(raw_speed)
        figures["collect_share_of_raw"].append(collect_speed / raw_speed)
    spent_s = {path[-1]: spent for path, spent in timer.spent_s.items()}
    spent_s["environment"] -= spent_s["physics steps"] + spent_s["physics resets"]
    spent_s["the rest"] = collect_s - sum(spent_s.values())
    steps = num_iterations * config.agent.num_steps_per_env
    figures["ms_per_env_step"] = {label: 1000 * spent / steps for label, spent in spent_s.items()}
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="Cartpole-Balance")
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--nets", type=int, nargs="*", default=None, help="hidden layers of both networks")
    parser.add_argument("--num-threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--num-iterations", type=int, default=60)
    parser.add_argument("--engine", default="auto", choices=["auto", "native", "warp"])
    parser.add_argument("--gpu-ids", type=int, default=None, help="one GPU; left out: the CPU")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    config = make_train_config(arguments.task, num_envs=arguments.num_envs, engine=arguments.engine)
    if arguments.nets:
        actor, critic = (
            replace(net, hidden_dims=tuple(arguments.nets)) for net in (config.agent.actor, config.agent.critic)
        )
        config = replace(config, agent=replace(config.agent, actor=actor, critic=critic))
    where = LaunchConfig(
        gpu_ids=None if arguments.gpu_ids is None else (arguments.gpu_ids,), num_threads=arguments.num_threads
    )
    figures = launch(measure, config, arguments.num_threads, arguments.num_iterations, launch=where)
    agent = config.agent
    ppo = agent.algorithm
    assert isinstance(ppo, PpoConfig)
    print(
        f"{config.task}: {config.num_envs} envs, decimation {config.env.decimation}, nets "
        f"{agent.actor.hidden_dims}, {agent.num_steps_per_env} steps, "
        f"{ppo.num_learning_epochs} epochs x {ppo.num_mini_batches} mini-batches, "
        f"{arguments.num_threads} threads, engine {arguments.engine}"
    )
    print(f"{'':24}{'min':>12}{'median':>12}{'max':>12}")
    rows = {
        "overall, env steps/s": figures["overall"],
        "collecting, env steps/s": figures["collect"],
        "raw rollout, env steps/s": figures["raw"],
        "collecting / raw, %": [100 * share for share in figures["collect_share_of_raw"]],
    }
    for name, values in rows.items():
        print(f"{name:24}{min(values):12,.0f}{statistics.median(values):12,.0f}{max(values):12,.0f}")
    collecting_ms = sum(figures["ms_per_env_step"].values())
    print(f"\ncollecting, ms per env step of all worlds{'':8}{collecting_ms:12.2f}")
    for label, spent_ms in sorted(figures["ms_per_env_step"].items(), key=lambda item: -item[1]):
        print(f"  {label:46}{spent_ms:12.2f}{100 * spent_ms / collecting_ms:8.0f} %")
    if arguments.json is not None:
        medians = {name: statistics.median(values) for name, values in figures.items() if isinstance(values, list)}
        arguments.json.write_text(json.dumps({"task": config.task, "medians": medians, "runs": figures}, indent=2))


if __name__ == "__main__":
    main()
