"""A small task whose training can be made to fail: FAULT=PHASE:RANK raises there, FAULT_SLOW_SAVE makes saves last."""

from dataclasses import replace
from typing import Any

import torch
from fault_injection import fail

from mjtrain import ObservationTerm, RewardTerm, TaskConfig
from mjtrain.catalog import load_task


def reward(env: Any) -> torch.Tensor:
    if env.episode_step.max() > 1:  # not in the dry step before the training
        fail("rollout")
    return torch.ones(env.num_envs)


def observation(env: Any) -> torch.Tensor:
    fail("build")
    return env.qpos("slider")


def make() -> TaskConfig:
    task = load_task("Cartpole-Balance")
    observations = {
        group: {**terms, "faulty": ObservationTerm(func=observation)} for group, terms in task.env.observations.items()
    }
    rewards = {**task.env.rewards, "faulty": RewardTerm(func=reward, weight=1.0)}
    algorithm = replace(task.agent.algorithm, class_name="fault_injection:FaultyPpo")
    return replace(
        task,
        num_envs=8,
        max_iterations=4,
        env=replace(task.env, observations=observations, rewards=rewards),
        agent=replace(task.agent, algorithm=algorithm, save_interval=2),
    )
