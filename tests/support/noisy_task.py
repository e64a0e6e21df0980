"""A task whose terms draw from every global random generator, and remember in global variables how often they did."""

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mjtrain import EventTerm, ObservationTerm, RewardTerm, SuccessTerm, TaskConfig
from mjtrain.env.catalog import load_task

CALLS = 0
HISTORY: list[float] = []
EVALUATED = 1
"""Worlds that are evaluated, and as many as no training has."""

MARKER = Path("evaluating")


def drawn(env: Any) -> torch.Tensor:
    global CALLS
    CALLS += 1
    HISTORY.append(random.random())
    return torch.rand(env.num_envs) + float(np.random.rand()) + HISTORY[-1] + 0.01 * CALLS + 0.01 * len(HISTORY)


def push(env: Any, worlds: Any) -> None:
    worlds.qvel[:] += 0.1 * torch.randn(env.num_envs, worlds.qvel.shape[1])


def upright(env: Any) -> torch.Tensor:
    return env.qpos("hinge")[:, 0].abs() < 0.2


def slow(env: Any) -> torch.Tensor:
    if env.num_envs == EVALUATED:
        MARKER.touch()
        time.sleep(0.01)
    return torch.ones(env.num_envs)


def make() -> TaskConfig:
    task = load_task("Cartpole-Balance")
    env = replace(
        task.env,
        episode_length_s=0.3,  # short enough for complete episodes within a training of 32 env steps
        rewards={**task.env.rewards, "drawn": RewardTerm(func=drawn, weight=1.0)},
        events={**task.env.events, "push": EventTerm(func=push, mode="interval", interval_s=(0.1, 0.2))},
        successes={"upright": SuccessTerm(func=upright)},
    )
    agent = replace(task.agent, num_steps_per_env=8, save_interval=2)
    return replace(task, env=env, agent=agent, num_envs=8, max_iterations=4)


def blurred(env: Any) -> torch.Tensor:
    return env.qpos("hinge") + torch.randn(env.num_envs, 1)


def make_blurred() -> TaskConfig:
    """A task whose observations draw from torch's global generator."""
    task = make()
    groups = {
        name: {**group, "blurred": ObservationTerm(func=blurred)} for name, group in task.env.observations.items()
    }
    return replace(task, env=replace(task.env, observations=groups))


def make_slow() -> TaskConfig:
    """A task whose evaluation lasts for minutes."""
    task = make()
    env = replace(
        task.env,
        episode_length_s=1000.0,
        terminations={"time_out": task.env.terminations["time_out"]},
        rewards={"slow": RewardTerm(func=slow, weight=1.0)},
    )
    return replace(task, env=env)
