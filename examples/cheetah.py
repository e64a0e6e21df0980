"""dm_control's cheetah runs: its MJCF file as it is, from the wheel dm_control.

uv run train examples/cheetah.py          # elsewhere: pip install dm-control first
"""

from importlib.resources import files

from mjtrain import ActionTerm, AgentConfig, DistributionConfig, EnvConfig, ModelConfig, PpoConfig, TaskConfig
from mjtrain.mdp import observation, reset_event, reward, root, truncation
from mjtrain.mdp.events import reset_with_noise
from mjtrain.mdp.observations import joint_positions, joint_velocities
from mjtrain.mdp.rewards import action_energy
from mjtrain.mdp.terminations import time_out

LEGS = ("[bf]thigh", "[bf]shin", "[bf]foot")


def make_task() -> TaskConfig:
    """Run forwards as fast as it can.

    Trains in: 10 minutes on two CPU cores, to more than 6 m/s.
    """
    env = EnvConfig(
        robot=str(files("dm_control") / "suite" / "cheetah.xml"),
        decimation=2,
        episode_length_s=10.0,
        actions={"torques": ActionTerm(actuators=(".*",))},
        observations={
            "actor": {
                "height_and_pitch": observation(joint_positions, joints=("rootz", "rooty")),
                "legs": observation(joint_positions, joints=LEGS),
                "velocities": observation(joint_velocities, joints=("root.", *LEGS)).replace(scale=0.1),
            }
        },
        rewards={
            "forward": reward(root.forward_velocity, 1.0, joint="rootx"),
            "upright": reward(root.upright, 1.0, joint="rooty"),
            "effort": reward(action_energy, -0.1),
        },
        terminations={"time_out": truncation(time_out)},
        events={"noise": reset_event(reset_with_noise, position=0.1, velocity=0.1)},
    )
    agent = AgentConfig(
        actor=ModelConfig(hidden_dims=(128, 128), distribution_cfg=DistributionConfig(init_std=1.0)),
        critic=ModelConfig(hidden_dims=(128, 128)),
        algorithm=PpoConfig(learning_rate=1e-3),
        obs_groups={"actor": ("actor",), "critic": ("actor",)},
        num_steps_per_env=32,
    )
    return TaskConfig(env=env, agent=agent, num_envs=256, max_iterations=600)
