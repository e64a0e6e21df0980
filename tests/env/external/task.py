"""A task whose environment is not mjtrain's, for jobs of several ranks."""

from dataclasses import replace
from typing import Any

from mjtrain import AgentConfig, TaskConfig, VecEnvConfig
from mjtrain.env.catalog import load_task
from support.point_mass import PointMass


def make_points(**options: Any) -> PointMass:
    return PointMass(**options)


def make_task() -> TaskConfig:
    """Points, and an agent whose critic sees more than its actor."""
    base: AgentConfig = load_task("gymnasium:none").agent
    agent = replace(
        base, num_steps_per_env=24, save_interval=2, obs_groups={"actor": ("policy",), "critic": ("critic",)}
    )
    env = VecEnvConfig(make=make_points, kwargs={"kill": "", "kill_step": 0})
    return TaskConfig(env=env, agent=agent, num_envs=16, max_iterations=4)
