"""A small task with terms that can fail: FAULT=PHASE:RANK raises in a build or a rollout.

With FAULT_SLOW_BUILD, a rank computes for as many seconds in its build, in one call of native code.
"""

import hashlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mjtrain import ObservationTerm, RewardTerm, TaskConfig
from mjtrain.env.catalog import load_task

has_built = False


def fail(phase: str) -> None:
    """Raise if this is the phase and the rank."""
    if os.environ.get("FAULT", "none:0").split(":") != [phase, os.environ.get("RANK", "0")]:
        return
    Path(os.environ["FAULT_MARKER"]).write_text(str(time.time()))
    raise ValueError("the arm fell off")


def compile_kernels(seconds: float) -> None:
    """Take as much time as a compiler would, without coming back to Python."""
    begin = time.thread_time()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)
    hashlib.pbkdf2_hmac("sha256", b"", b"", round(200_000 * seconds / (time.thread_time() - begin)))


def reward(env: Any) -> torch.Tensor:
    if "RANK" in os.environ and env.episode_step.max() > 1:  # not in the dry step before the training
        fail("rollout")
    return torch.ones(env.num_envs)


def observation(env: Any) -> torch.Tensor:
    global has_built
    fail("build")
    if "RANK" in os.environ and "FAULT_SLOW_BUILD" in os.environ and not has_built:
        compile_kernels(float(os.environ["FAULT_SLOW_BUILD"]))
    has_built = "RANK" in os.environ
    return env.qpos("slider")


def make() -> TaskConfig:
    task = load_task("Cartpole-Balance")
    observations = {
        group: {**terms, "faulty": ObservationTerm(func=observation)} for group, terms in task.env.observations.items()
    }
    rewards = {**task.env.rewards, "faulty": RewardTerm(func=reward, weight=1.0)}
    return replace(
        task,
        num_envs=8,
        max_iterations=4,
        env=replace(task.env, observations=observations, rewards=rewards),
        agent=replace(task.agent, save_interval=2),
    )
