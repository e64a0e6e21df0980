"""Arm-Reach: bring the tool of a six-joint arm to commanded poses."""

from mjtrain import (
    ActionTerm,
    AgentConfig,
    DistributionConfig,
    EnvConfig,
    ModelConfig,
    PpoConfig,
    TaskConfig,
    WarmStartConfig,
    mdp,
)
from mjtrain.mdp import events, observations, reach, rewards, terminations
from mjtrain_tasks.models import ARM

JOINTS = (".*",)
POSES = {
    "x": (0.3, 0.6),
    "y": (-0.25, 0.35),
    "z": (0.2, 0.55),
    "roll": (2.74, 3.54),
    "pitch": (-0.4, 0.4),
    "yaw": (-2.6, -0.5),
}
TOOL_POSITION = {"command": "pose", "position_sensor": "tool_position"}
TOOL_ORIENTATION = {"command": "pose", "orientation_sensor": "tool_orientation"}


def make_task() -> TaskConfig:
    """Bring the tool of a six-joint arm to commanded poses.

    Trains in: about 2.5 minutes on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=make_agent(), num_envs=1024, num_envs_gpu=4096, max_iterations=120)


def make_env() -> EnvConfig:
    """The MDP: 50 env steps per second; an episode is two poses of 3 s, and only time ends it."""
    return EnvConfig(
        robot=str(ARM),
        decimation=4,
        episode_length_s=6.0,
        actions={"joints": ActionTerm(actuators=JOINTS, scale=0.5, from_home=True, clip=(-6.0, 6.0))},
        commands={
            "pose": mdp.command(reach.pose_command, **POSES).replace(
                resampling_s=(3.0, 3.0),
                errors={
                    "distance": mdp.error(reach.distance, "m", **TOOL_POSITION).replace(settling_s=2.5),
                    "angle": mdp.error(reach.angle, "rad", **TOOL_ORIENTATION).replace(settling_s=2.5),
                },
                controls=POSES,
                steer=reach.steer,
                is_pose=True,
            )
        },
        observations={
            "actor": {
                "joint_positions": mdp.observation(observations.joint_pos_rel, joints=JOINTS).replace(noise=0.005),
                "joint_velocities": mdp.observation(observations.joint_velocities, joints=JOINTS).replace(noise=0.02),
                "pose": mdp.observation(observations.command, command="pose"),
                "position_error": mdp.observation(reach.position_error, **TOOL_POSITION),
                "orientation_error": mdp.observation(reach.orientation_error, **TOOL_ORIENTATION),
                "last_action": mdp.observation(observations.last_action),
            }
        },
        rewards={
            "near": mdp.reward(reach.near_position, 1.0, **TOOL_POSITION, tolerance_m=0.2),
            "exact": mdp.reward(reach.near_position, 2.0, **TOOL_POSITION, tolerance_m=0.03),
            "orientation": mdp.reward(reach.near_orientation, 1.0, **TOOL_ORIENTATION, tolerance=0.5),
            "action_rate": mdp.reward(rewards.action_rate, -0.02),
            "speed": mdp.reward(rewards.joint_speed, -0.005, joints=JOINTS),
        },
        terminations={"time_out": mdp.truncation(terminations.time_out)},
        controllers={
            "inverse_kinematics": mdp.controller(
                reach.inverse_kinematics,
                command="pose",
                position_sensor="tool_position",
                orientation_sensor="tool_orientation",
            )
        },
        events={"joints": mdp.reset_event(events.reset_joints_by_scale, joints=JOINTS, factor=(0.8, 1.2))},
    )


def make_agent() -> AgentConfig:
    """PPO with two networks that see the same observations; the actor begins with inverse kinematics."""
    return AgentConfig(
        actor=ModelConfig(hidden_dims=(128, 64), distribution_cfg=DistributionConfig(init_std=1.0)),
        critic=ModelConfig(hidden_dims=(128, 64)),
        algorithm=PpoConfig(
            entropy_coef=0.002, desired_kl=0.02, warm_start=WarmStartConfig(controller="inverse_kinematics")
        ),
        obs_groups={"actor": ("actor",), "critic": ("actor",)},
    )
