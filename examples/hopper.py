"""Gymnasium's hopper hops: its MJCF file as it is, from the wheel gymnasium.

uv run train examples/hopper.py          # elsewhere: pip install gymnasium first
"""

from importlib.resources import files

from mjtrain import ActionTerm, AgentConfig, DistributionConfig, EnvConfig, ModelConfig, PpoConfig, TaskConfig
from mjtrain.mdp import observation, reset_event, reward, root, termination, truncation
from mjtrain.mdp.events import reset_with_noise
from mjtrain.mdp.observations import joint_positions, joint_velocities
from mjtrain.mdp.rewards import action_energy, is_alive
from mjtrain.mdp.terminations import joint_out_of_range, time_out

LEG = ("thigh_joint", "leg_joint", "foot_joint")


def make_task() -> TaskConfig:
    """Hop forwards without falling.

    Trains in: 4 minutes on two CPU cores.
    """
    env = EnvConfig(
        robot=str(files("gymnasium") / "envs" / "mujoco" / "assets" / "hopper.xml"),
        decimation=4,
        episode_length_s=8.0,
        actions={"torques": ActionTerm(actuators=LEG)},  # they have no names in the file, and get those of their joints
        observations={
            "actor": {
                "height_and_pitch": observation(joint_positions, joints=("rootz", "rooty")),
                "leg": observation(joint_positions, joints=LEG),
                "velocities": observation(joint_velocities, joints=("root.", *LEG)).replace(clip=(-10.0, 10.0)),
            }
        },
        rewards={
            "forward": reward(root.reach_forward_velocity, 2.0, joint="rootx", speed=2.5),
            "alive": reward(is_alive, 1.0),
            "effort": reward(action_energy, -0.01),
        },
        terminations={
            "time_out": truncation(time_out),
            "too_low": termination(root.height_out_of_range, joint="rootz", low=0.7),
            "tilted": termination(joint_out_of_range, joint="rooty", limit=0.2),
        },
        events={"noise": reset_event(reset_with_noise, position=0.005, velocity=0.005)},
    )
    agent = AgentConfig(
        actor=ModelConfig(hidden_dims=(64, 64), distribution_cfg=DistributionConfig(init_std=1.0)),
        critic=ModelConfig(hidden_dims=(64, 64)),
        algorithm=PpoConfig(learning_rate=1e-3, gamma=0.995),
        obs_groups={"actor": ("actor",), "critic": ("actor",)},
        num_steps_per_env=32,
    )
    return TaskConfig(env=env, agent=agent, num_envs=256, max_iterations=400)
