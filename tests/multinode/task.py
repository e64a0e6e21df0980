"""Small tasks for many ranks on few cores, whose ranks say who they are."""

from dataclasses import replace
from typing import Any

import torch
from rank_notes import note

from mjtrain import EventTerm, PpoConfig, TaskConfig
from mjtrain.env.catalog import load_task


def note_once(env: Any, worlds: torch.Tensor) -> None:
    note(env)


def make() -> TaskConfig:
    """For RSL-RL, with an algorithm that fails when asked to."""
    task = load_task("Cartpole-Balance")
    algorithm = replace(task.agent.algorithm, class_name="multinode_faults:FaultyPpo")
    return _make_small(replace(task, agent=replace(task.agent, algorithm=algorithm)))


def make_for_any_learner() -> TaskConfig:
    """With networks and updates that XLA compiles quickly."""
    task = load_task("Cartpole-Balance")
    agent = replace(
        task.agent,
        num_steps_per_env=4,
        actor=replace(task.agent.actor, hidden_dims=(8,)),
        critic=replace(task.agent.critic, hidden_dims=(8,)),
        algorithm=PpoConfig(num_learning_epochs=1, num_mini_batches=2),
    )
    return _make_small(replace(task, agent=agent))


def _make_small(task: TaskConfig) -> TaskConfig:
    events = {**task.env.events, "note": EventTerm(func=note_once, mode="startup")}
    return replace(
        task,
        num_envs=8,
        max_iterations=4,
        env=replace(task.env, events=events),
        agent=replace(task.agent, save_interval=2),
    )
