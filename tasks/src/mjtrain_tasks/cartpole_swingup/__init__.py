"""Cartpole-Swingup: swing a hanging pole up by pushing the cart, and keep it there."""

from mjtrain import (
    ActionTerm,
    AgentConfig,
    DistributionConfig,
    EnvConfig,
    MirrorConfig,
    ModelConfig,
    PpoConfig,
    RobotConfig,
    SymmetryConfig,
    TaskConfig,
)
from mjtrain.mdp import observation, reset_event, reward, termination, truncation
from mjtrain.mdp.events import reset_joints_by_offset
from mjtrain.mdp.observations import joint_cos_sin, joint_pos, joint_vel
from mjtrain.mdp.rewards import action_energy
from mjtrain.mdp.terminations import joint_out_of_range, time_out
from mjtrain_tasks.cartpole_swingup import rewards
from mjtrain_tasks.models import CARTPOLE

HANGING_RAD = 3.141592653589793
FULL_TURN_RAD = 2 * HANGING_RAD


def make_task() -> TaskConfig:
    """Swing a hanging pole up by pushing the cart, and balance it.

    Trains in: about a minute on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=make_agent(), num_envs=256, num_envs_gpu=4096, max_iterations=200)


def make_env() -> EnvConfig:
    """The MDP: 50 env steps per second, 10 s per episode; it ends early when the pole has turned over."""
    return EnvConfig(
        robot=RobotConfig(file=str(CARTPOLE), mirror=MirrorConfig(plane="x")),
        decimation=5,
        episode_length_s=10.0,
        actions={"push": ActionTerm(actuators=("push",))},
        observations={
            "actor": {
                "cart_position": observation(joint_pos, joint="slider"),
                "pole_direction": observation(joint_cos_sin, joint="hinge"),
                "cart_velocity": observation(joint_vel, joint="slider"),
                "pole_velocity": observation(joint_vel, joint="hinge"),
            }
        },
        # A spinning pole is upright half of the time, so most of the reward is for being upright and slow.
        rewards={
            "upright": reward(rewards.upright_and_centered, 0.2, sensor="pole_axis", joint="slider", width=1.0),
            "still": reward(rewards.still_when_upright, 1.0, sensor="pole_axis", joint="hinge", width=4.0),
            "effort": reward(action_energy, -0.005),
        },
        # The rewards hardly distinguish fast spins. Without this end, a policy that swings high can stay with a spin,
        # and then few samples show a pole that is slow near the top.
        terminations={
            "time_out": truncation(time_out),
            "turned_over": termination(
                joint_out_of_range, joint="hinge", low=HANGING_RAD - FULL_TURN_RAD, high=HANGING_RAD + FULL_TURN_RAD
            ),
        },
        events={
            "start_cart": reset_event(
                reset_joints_by_offset, joint="slider", position=(-0.5, 0.5), velocity=(-0.2, 0.2)
            ),
            "start_pole": reset_event(
                reset_joints_by_offset,
                joint="hinge",
                position=(HANGING_RAD - 0.2, HANGING_RAD + 0.2),
                velocity=(-0.1, 0.1),
            ),
        },
    )


def make_agent() -> AgentConfig:
    """PPO with two small networks that see the same observations, and that know left from right by its mirror image."""
    return AgentConfig(
        actor=ModelConfig(hidden_dims=(64, 64), distribution_cfg=DistributionConfig(init_std=1.0)),
        critic=ModelConfig(hidden_dims=(64, 64)),
        # A push raises the pole half a swing (0.8 s) later, but costs effort at once. With lam=0.95 and an effort of
        # -0.02 seed 0 learned not to push before a pole had ever been high. With 0.98 and -0.02 some learned late.
        algorithm=PpoConfig(lam=0.98, entropy_coef=0.01, symmetry_cfg=SymmetryConfig(use_equivariant_networks=True)),
        obs_groups={"actor": ("actor",), "critic": ("actor",)},
    )
