"""dm_control's reacher reaches targets in its plane: its MJCF file as it is, from the wheel dm_control.

uv run train examples/reacher.py          # elsewhere: pip install dm-control first
"""

from importlib.resources import files

import mjtrain
from mjtrain.mdp import command, error, observation, reset_event, reward, targets, truncation
from mjtrain.mdp.events import reset_joints_by_offset
from mjtrain.mdp.observations import joint_cos_sin, joint_pos, joint_velocities
from mjtrain.mdp.rewards import joint_speed
from mjtrain.mdp.terminations import time_out


def make_task() -> mjtrain.TaskConfig:
    """Bring the finger to targets that change every two seconds.

    Trains in: a minute on two CPU cores.
    """
    target = {"command": "target", "position_sensor": "finger"}
    distance = error(targets.planar_distance, "m", **target).replace(settling_s=1.0)
    env = mjtrain.EnvConfig(
        robot=mjtrain.RobotConfig(
            file=str(files("dm_control") / "suite" / "reacher.xml"),
            sensors={"finger": mjtrain.SensorConfig(type="framepos", object="finger")},
        ),
        decimation=1,
        episode_length_s=4.0,
        actions={"torques": mjtrain.ActionTerm(actuators=("shoulder", "wrist"))},
        commands={
            "target": command(targets.planar_command, radius=(0.05, 0.2)).replace(
                resampling_s=(2.0, 2.0), errors={"distance": distance}
            )
        },
        observations={
            "actor": {
                "to_target": observation(targets.planar_error, **target),
                "shoulder": observation(joint_cos_sin, joint="shoulder"),
                "wrist": observation(joint_pos, joint="wrist"),
                "velocities": observation(joint_velocities, joints=("shoulder", "wrist")).replace(scale=0.1),
            }
        },
        rewards={
            "near": reward(targets.near_planar, 1.0, **target, tolerance_m=0.1),
            "there": reward(targets.near_planar, 1.0, **target, tolerance_m=0.02),
            "speed": reward(joint_speed, -0.001, joints=("shoulder", "wrist")),
        },
        terminations={"time_out": truncation(time_out)},
        events={"start": reset_event(reset_joints_by_offset, joint="shoulder", position=(-3.1, 3.1))},
    )
    agent = mjtrain.AgentConfig(
        actor=mjtrain.ModelConfig(hidden_dims=(64, 64), distribution_cfg=mjtrain.DistributionConfig(init_std=1.0)),
        critic=mjtrain.ModelConfig(hidden_dims=(64, 64)),
        algorithm=mjtrain.PpoConfig(learning_rate=1e-3, gamma=0.95),
        obs_groups={"actor": ("actor",), "critic": ("actor",)},
    )
    return mjtrain.TaskConfig(env=env, agent=agent, num_envs=256, max_iterations=150)
