"""A small task for any learner."""

from dataclasses import replace

from mjtrain import PpoConfig, TaskConfig
from mjtrain.env.catalog import load_task

STEPS, SAVE_INTERVAL = 4, 3
"""Env steps of an iteration, and how many iterations apart the runs of this task save."""


def make() -> TaskConfig:
    task = load_task("Cartpole-Balance")
    agent = replace(
        task.agent,
        num_steps_per_env=STEPS,
        save_interval=SAVE_INTERVAL,
        actor=replace(task.agent.actor, hidden_dims=(8,)),
        critic=replace(task.agent.critic, hidden_dims=(8,)),
        algorithm=PpoConfig(num_learning_epochs=2, num_mini_batches=2),
    )
    return replace(task, num_envs=8, agent=agent)
