"""What the tests of the environment share."""

import pytest
import torch

from mjtrain.config import EnvConfig
from mjtrain.env.catalog import list_tasks
from mjtrain.env.env import Env
from mjtrain.sim.engines import make_engine

NUM_ENVS = 6
ENGINES = ["native", pytest.param("warp", marks=pytest.mark.process)]
"""Parameters for a test on both; kernels take their time on a CPU."""

TASKS = [entry.name for entry in list_tasks() if entry.name != "Go2-Velocity-Flat"]
"""The Go2 does the task of the quadruped, and its meshes take seconds to load; env/test_go2.py has what is its own."""


def make_env(config: EnvConfig, *, engine: str = "native", seed: int = 0, num_envs: int = NUM_ENVS) -> Env:
    assert engine in ("native", "warp")
    return Env(config, make_engine(engine, config, num_envs, "cpu", num_threads=2), seed)


def actions_for(env: Env, num_steps: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(num_steps, env.num_envs, env.num_actions, generator=generator) - 1
