"""Cartpole-Balance: keep a pole upright by pushing the cart under it."""

from mjtrain import (
    ActionTerm,
    AgentConfig,
    DistributionConfig,
    EnvConfig,
    MirrorConfig,
    ModelConfig,
    PpoConfig,
    RobotConfig,
    TaskConfig,
)
from mjtrain.mdp import observation, reset_event, reward, termination, truncation
from mjtrain.mdp.events import reset_joints_by_offset
from mjtrain.mdp.observations import joint_pos, joint_vel
from mjtrain.mdp.rewards import action_energy
from mjtrain.mdp.terminations import joint_out_of_range, time_out
from mjtrain_tasks.cartpole_balance import rewards
from mjtrain_tasks.models import CARTPOLE


def make_task() -> TaskConfig:
    """Balance a pole by pushing the cart under it.

    Trains in: about half a minute on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=make_agent(), num_envs=256, num_envs_gpu=4096, max_iterations=100)


def make_env() -> EnvConfig:
    """The MDP: 50 env steps per second, 10 s per episode; it ends early when pole or cart go too far."""
    return EnvConfig(
        robot=RobotConfig(file=str(CARTPOLE), mirror=MirrorConfig(plane="x")),
        decimation=5,
        episode_length_s=10.0,
        actions={"push": ActionTerm(actuators=("push",))},
        observations={
            "actor": {
                "cart_position": observation(joint_pos, joint="slider"),
                "pole_angle": observation(joint_pos, joint="hinge"),
                "cart_velocity": observation(joint_vel, joint="slider"),
                "pole_velocity": observation(joint_vel, joint="hinge"),
            }
        },
        rewards={
            "upright": reward(rewards.upright, 1.0, sensor="pole_axis"),
            "centered": reward(rewards.centered, 0.5, joint="slider", width=0.5),
            "effort": reward(action_energy, -0.05),
        },
        terminations={
            "time_out": truncation(time_out),
            "pole_fell": termination(joint_out_of_range, joint="hinge", limit=0.5),
            "cart_left": termination(joint_out_of_range, joint="slider", limit=1.8),
        },
        events={
            "start_cart": reset_event(
                reset_joints_by_offset, joint="slider", position=(-0.5, 0.5), velocity=(-0.2, 0.2)
            ),
            "start_pole": reset_event(
                reset_joints_by_offset, joint="hinge", position=(-0.1, 0.1), velocity=(-0.1, 0.1)
            ),
        },
    )


def make_agent() -> AgentConfig:
    """PPO with two small networks that see the same observations."""
    return AgentConfig(
        actor=ModelConfig(hidden_dims=(64, 64), distribution_cfg=DistributionConfig(init_std=1.0)),
        critic=ModelConfig(hidden_dims=(64, 64)),
        algorithm=PpoConfig(learning_rate=1e-3),
        obs_groups={"actor": ("actor",), "critic": ("actor",)},
    )
