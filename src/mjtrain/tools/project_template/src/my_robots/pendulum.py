"""My-Robots-Pendulum: swing a rod up and hold it there."""

from pathlib import Path

import torch

from mjtrain import ActionTerm, AgentConfig, DistributionConfig, EnvConfig, ModelConfig, PpoConfig, TaskConfig
from mjtrain.mdp import Env, observation, reset_event, reward, truncation
from mjtrain.mdp.events import reset_joints_by_offset
from mjtrain.mdp.observations import joint_cos_sin, joint_vel
from mjtrain.mdp.rewards import action_energy
from mjtrain.mdp.terminations import time_out


def upright(env: Env, *, joint: str) -> torch.Tensor:
    """Cosine of the angle of a hinge: 1 up, -1 down. Shape (num_envs,)."""
    return torch.cos(env.qpos(joint)[:, 0])


def make_task() -> TaskConfig:
    """Swing a rod up and hold it there.

    Trains in: about half a minute on two CPU cores.
    """
    env = EnvConfig(
        robot=str(Path(__file__).with_name("pendulum.xml")),
        decimation=4,
        episode_length_s=5.0,
        actions={"torque": ActionTerm(actuators=("torque",))},
        observations={
            "actor": {
                "angle": observation(joint_cos_sin, joint="hinge"),
                "velocity": observation(joint_vel, joint="hinge").replace(scale=0.2),
            }
        },
        rewards={
            "upright": reward(upright, 1.0, joint="hinge"),
            "effort": reward(action_energy, -0.05),
        },
        terminations={"time_out": truncation(time_out)},
        events={
            "start": reset_event(reset_joints_by_offset, joint="hinge", position=(-3.1, 3.1), velocity=(-1.0, 1.0))
        },
    )
    agent = AgentConfig(
        actor=ModelConfig(hidden_dims=(64, 64), distribution_cfg=DistributionConfig()),
        critic=ModelConfig(hidden_dims=(64, 64)),
        algorithm=PpoConfig(learning_rate=1e-3),
        obs_groups={"actor": ("actor",), "critic": ("actor",)},
    )
    return TaskConfig(env=env, agent=agent, num_envs=512, max_iterations=100)
