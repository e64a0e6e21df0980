"""A small task whose trainings go well or wrong as a setting says: --env.curriculum.quality.params.mode MODE.

MJTRAIN_TEST_HOLD=FILE makes each start of a training wait in its third iteration as long as the file exists.
"""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mjtrain import CurriculumTerm, TaskConfig
from mjtrain.env.catalog import load_task

DRY_STEP_WORLDS = 2
STEPS = 24
"""Env steps of an iteration."""

num_steps = 0


def quality(env: Any, level: torch.Tensor, *, mode: str) -> torch.Tensor:
    """Return how good a training is in this mode; in some of them it never comes to its end."""
    global num_steps
    if env.num_envs == DRY_STEP_WORLDS:
        return level
    num_steps += 1
    hold = os.environ.get("MJTRAIN_TEST_HOLD")
    while hold and num_steps > 2 * STEPS and Path(hold).exists():
        time.sleep(0.02)
    if mode == "raise":
        raise ValueError("the arm fell off")
    if mode == "stop_early" or (mode == "stop" and num_steps > STEPS):
        os.kill(os.getpid(), signal.SIGSTOP)
    if mode == "low":
        time.sleep(0.05)
    return torch.full_like(level, {"low": 0.5, "nan": torch.nan}.get(mode, 1.0))


def make() -> TaskConfig:
    task = load_task("Cartpole-Balance")
    curriculum = {"quality": CurriculumTerm(func=quality, params={"mode": "fine"})}
    env = replace(task.env, curriculum=curriculum, episode_length_s=0.2)
    return replace(task, num_envs=8, max_iterations=12, env=env, agent=replace(task.agent, save_interval=5))
