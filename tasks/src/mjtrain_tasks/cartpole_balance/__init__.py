"""Cartpole-Balance: keep a pole upright by pushing the cart under it."""

from mjtrain import (
    ActionTerm,
    AgentConfig,
    DistributionConfig,
    EnvConfig,
    EventTerm,
    ModelConfig,
    ObservationTerm,
    PpoConfig,
    RewardTerm,
    TaskConfig,
    TerminationTerm,
)
from mjtrain.mdp.events import add_uniform_joint_offset
from mjtrain.mdp.observations import joint_pos, joint_vel
from mjtrain.mdp.rewards import action_energy
from mjtrain.mdp.terminations import joint_out_of_range, time_out
from mjtrain_tasks.cartpole_balance import rewards
from mjtrain_tasks.models import CARTPOLE


def make_task() -> TaskConfig:
    """Balance a pole by pushing the cart under it.

    Trains in: about half a minute on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=make_agent(), num_envs=1024, num_envs_gpu=4096, max_iterations=100)


def make_env() -> EnvConfig:
    """The MDP: 50 decisions a second, 10 s an episode, over early when pole or cart go too far."""
    return EnvConfig(
        robot=str(CARTPOLE),
        decimation=5,
        episode_length_s=10.0,
        actions={"push": ActionTerm(actuators=("push",))},
        observations={
            "actor": {
                "cart_position": ObservationTerm(func=joint_pos, params={"joint": "slider"}),
                "pole_angle": ObservationTerm(func=joint_pos, params={"joint": "hinge"}),
                "cart_velocity": ObservationTerm(func=joint_vel, params={"joint": "slider"}),
                "pole_velocity": ObservationTerm(func=joint_vel, params={"joint": "hinge"}),
            }
        },
        rewards={
            "upright": RewardTerm(func=rewards.upright, weight=1.0, params={"sensor": "pole_axis"}),
            "centered": RewardTerm(func=rewards.centered, weight=0.5, params={"joint": "slider", "width": 0.5}),
            "effort": RewardTerm(func=action_energy, weight=-0.05),
        },
        terminations={
            "time_out": TerminationTerm(func=time_out, truncates=True),
            "pole_fell": TerminationTerm(func=joint_out_of_range, params={"joint": "hinge", "limit": 0.5}),
            "cart_left": TerminationTerm(func=joint_out_of_range, params={"joint": "slider", "limit": 1.8}),
        },
        events={
            "start_cart": EventTerm(
                func=add_uniform_joint_offset,
                params={"joint": "slider", "position": (-0.5, 0.5), "velocity": (-0.2, 0.2)},
            ),
            "start_pole": EventTerm(
                func=add_uniform_joint_offset,
                params={"joint": "hinge", "position": (-0.1, 0.1), "velocity": (-0.1, 0.1)},
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
