"""A small task for any learner. FAULT=RANK:STEP has a rank send itself SIGKILL in that env step, once for each job."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mjtrain import PpoConfig, RewardTerm, TaskConfig
from mjtrain.catalog import load_task

STEPS, SAVE_INTERVAL = 4, 3
"""Env steps of an iteration, and how many iterations apart the runs of this task save."""

num_steps = 0
"""Env steps of this process."""


def reward(env: Any) -> torch.Tensor:
    if dist.is_initialized() and "FAULT" in os.environ:  # not in the dry step before the training
        _count_step(os.environ["FAULT"], Path(os.environ["FAULT_MARKER"]))
    return torch.zeros(env.num_envs)


def _count_step(fault: str, marker: Path) -> None:
    global num_steps
    num_steps += 1
    if fault == f"{os.environ['RANK']}:{num_steps}" and not marker.exists():
        marker.write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)


def make() -> TaskConfig:
    task = load_task("Cartpole-Balance")
    rewards = {**task.env.rewards, "killer": RewardTerm(func=reward, weight=1.0)}
    agent = replace(
        task.agent,
        num_steps_per_env=STEPS,
        save_interval=SAVE_INTERVAL,
        actor=replace(task.agent.actor, hidden_dims=(8,)),
        critic=replace(task.agent.critic, hidden_dims=(8,)),
        algorithm=PpoConfig(num_learning_epochs=2, num_mini_batches=2),
    )
    return replace(task, num_envs=8, env=replace(task.env, rewards=rewards), agent=agent)
