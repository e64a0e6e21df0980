"""A student of Cartpole-Balance that sees positions only, and the teacher that it learns from."""

from dataclasses import replace
from pathlib import Path

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import AgentConfig, LaunchConfig, TrainConfig
from mjtrain.mdp import observation
from mjtrain.mdp.observations import joint_pos


def make_student(agent: AgentConfig) -> TrainConfig:
    """Give the task a group `student` with the last two positions, which the agent's actor may see."""
    config = make_train_config("Cartpole-Balance", num_envs=8)
    positions = {
        "cart": observation(joint_pos, joint="slider").replace(history=2),
        "pole": observation(joint_pos, joint="hinge").replace(history=2),
    }
    env = replace(config.env, observations={**config.env.observations, "student": positions})
    return replace(config, env=env, agent=agent)


def train_teacher(folder: Path) -> None:
    """Train a teacher that sees positions and velocities, and is not good at anything."""
    launch = LaunchConfig(gpu_ids=None, num_threads=1)
    mjtrain.train("Cartpole-Balance", launch=launch, num_envs=8, max_iterations=1, log_root=str(folder), logger="none")
