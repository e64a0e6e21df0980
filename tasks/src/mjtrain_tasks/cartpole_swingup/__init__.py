"""Cartpole-Swingup: swing a hanging pole up by pushing the cart, and keep it there."""

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
from mjtrain.mdp.observations import joint_cos_sin, joint_pos, joint_vel
from mjtrain.mdp.rewards import action_energy
from mjtrain.mdp.terminations import time_out
from mjtrain_tasks.cartpole_swingup import rewards
from mjtrain_tasks.models import CARTPOLE

HANGING_RAD = 3.141592653589793


def make_task() -> TaskConfig:
    """Swing a hanging pole up by pushing the cart, and balance it.

    Trains in: about 80 seconds on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=make_agent(), num_envs=1024, num_envs_gpu=4096, max_iterations=300)


def make_env() -> EnvConfig:
    """The MDP: 50 decisions a second, 10 s an episode, which only time ends."""
    return EnvConfig(
        robot=str(CARTPOLE),
        decimation=5,
        episode_length_s=10.0,
        actions={"push": ActionTerm(actuators=("push",))},
        observations={
            "actor": {
                "cart_position": ObservationTerm(func=joint_pos, params={"joint": "slider"}),
                "pole_direction": ObservationTerm(func=joint_cos_sin, params={"joint": "hinge"}),
                "cart_velocity": ObservationTerm(func=joint_vel, params={"joint": "slider"}),
                "pole_velocity": ObservationTerm(func=joint_vel, params={"joint": "hinge"}),
            }
        },
        # A spinning pole is up half of the time, so most of the reward is for being up and slow.
        rewards={
            "upright": RewardTerm(
                func=rewards.upright_and_centered,
                weight=0.2,
                params={"sensor": "pole_axis", "joint": "slider", "width": 1.0},
            ),
            "still": RewardTerm(
                func=rewards.still_when_upright,
                weight=1.0,
                params={"sensor": "pole_axis", "joint": "hinge", "width": 4.0},
            ),
            "effort": RewardTerm(func=action_energy, weight=-0.02),
        },
        terminations={"time_out": TerminationTerm(func=time_out, truncates=True)},
        events={
            "start_cart": EventTerm(
                func=add_uniform_joint_offset,
                params={"joint": "slider", "position": (-0.5, 0.5), "velocity": (-0.2, 0.2)},
            ),
            "start_pole": EventTerm(
                func=add_uniform_joint_offset,
                params={
                    "joint": "hinge",
                    "position": (HANGING_RAD - 0.2, HANGING_RAD + 0.2),
                    "velocity": (-0.1, 0.1),
                },
            ),
        },
    )


def make_agent() -> AgentConfig:
    """PPO with two small networks that see the same observations."""
    return AgentConfig(
        actor=ModelConfig(hidden_dims=(64, 64), distribution_cfg=DistributionConfig(init_std=1.0)),
        critic=ModelConfig(hidden_dims=(64, 64)),
        algorithm=PpoConfig(entropy_coef=0.01),
        obs_groups={"actor": ("actor",), "critic": ("actor",)},
    )
