"""A small task for many ranks on few cores, whose ranks say who they are."""

from dataclasses import replace
from typing import Any

import torch
from multinode_faults import note

from mjtrain import EventTerm, TaskConfig
from mjtrain.catalog import load_task


def note_once(env: Any, worlds: torch.Tensor) -> None:
    note(env)


def make() -> TaskConfig:
    task = load_task("Cartpole-Balance")
    events = {**task.env.events, "note": EventTerm(func=note_once, mode="startup")}
    algorithm = replace(task.agent.algorithm, class_name="multinode_faults:FaultyPpo")
    return replace(
        task,
        num_envs=8,
        max_iterations=4,
        env=replace(task.env, events=events),
        agent=replace(task.agent, algorithm=algorithm, save_interval=2),
    )
