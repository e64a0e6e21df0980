"""Gymnasium's ant runs: its MJCF file as it is, from the wheel gymnasium.

uv run train examples/ant.py          # elsewhere: pip install gymnasium first
"""

from importlib.resources import files

import mjtrain
from mjtrain.mdp import observation, reset_event, reward, root, termination, truncation
from mjtrain.mdp.events import reset_with_noise
from mjtrain.mdp.observations import joint_positions, joint_velocities
from mjtrain.mdp.rewards import action_energy, is_alive
from mjtrain.mdp.terminations import time_out

LEGS = ("hip_.", "ankle_.")


def make_task() -> mjtrain.TaskConfig:
    """Run along x without rolling over.

    Trains in: 10 minutes on two CPU cores.
    """
    stand = mjtrain.KeyframeConfig(height=0.55, joints={"ankle_[14]": 1.0, "ankle_[23]": -1.0})
    env = mjtrain.EnvConfig(
        robot=mjtrain.RobotConfig(
            file=str(files("gymnasium") / "envs" / "mujoco" / "assets" / "ant.xml"), keyframes={"home": stand}
        ),
        decimation=5,
        episode_length_s=10.0,
        actions={"torques": mjtrain.ActionTerm(actuators=LEGS)},
        observations={
            "actor": {
                "height": observation(root.base_height, joint="root"),
                "gravity": observation(root.projected_gravity, joint="root"),
                "linear": observation(root.base_lin_vel, joint="root"),
                "angular": observation(root.base_ang_vel, joint="root"),
                "legs": observation(joint_positions, joints=LEGS),
                "velocities": observation(joint_velocities, joints=LEGS).replace(scale=0.1),
            }
        },
        rewards={
            "forward": reward(root.forward_velocity, 1.0, joint="root"),
            "alive": reward(is_alive, 1.0),
            "effort": reward(action_energy, -0.1),
        },
        terminations={
            "time_out": truncation(time_out),
            "height": termination(root.height_out_of_range, joint="root", low=0.2, high=1.0),
        },
        events={"noise": reset_event(reset_with_noise, position=0.1, velocity=0.1, velocity_distribution="normal")},
    )
    agent = mjtrain.AgentConfig(
        actor=mjtrain.ModelConfig(hidden_dims=(128, 128), distribution_cfg=mjtrain.DistributionConfig(init_std=0.5)),
        critic=mjtrain.ModelConfig(hidden_dims=(128, 128)),
        algorithm=mjtrain.PpoConfig(learning_rate=1e-3),
        obs_groups={"actor": ("actor",), "critic": ("actor",)},
    )
    return mjtrain.TaskConfig(env=env, agent=agent, num_envs=256, max_iterations=500)
