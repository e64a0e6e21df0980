"""Arm-Reach: bring the tool of a six-joint arm to commanded poses."""

from mjtrain import (
    ActionTerm,
    AgentConfig,
    CommandTerm,
    DistributionConfig,
    EnvConfig,
    ErrorTerm,
    EventTerm,
    ModelConfig,
    ObservationTerm,
    PpoConfig,
    RewardTerm,
    TaskConfig,
    TerminationTerm,
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
    """The MDP: 50 decisions a second; an episode is two poses of 3 s, and only time ends it."""
    return EnvConfig(
        robot=str(ARM),
        decimation=4,
        episode_length_s=6.0,
        actions={"joints": ActionTerm(actuators=JOINTS, scale=0.5, from_home=True, clip=(-6.0, 6.0))},
        commands={
            "pose": CommandTerm(
                func=reach.pose_command,
                params=dict(POSES),
                resampling_s=(3.0, 3.0),
                errors={
                    "distance": ErrorTerm(func=reach.distance, params=TOOL_POSITION, unit="m", settling_s=2.5),
                    "angle": ErrorTerm(func=reach.angle, params=TOOL_ORIENTATION, unit="rad", settling_s=2.5),
                },
                controls=dict(POSES),
                steer=reach.steer,
                is_pose=True,
            )
        },
        observations={
            "actor": {
                "joint_positions": ObservationTerm(
                    func=observations.joints_from_home, params={"joints": JOINTS}, noise=0.005
                ),
                "joint_velocities": ObservationTerm(
                    func=observations.joint_velocities, params={"joints": JOINTS}, noise=0.02
                ),
                "pose": ObservationTerm(func=observations.command, params={"command": "pose"}),
                "position_error": ObservationTerm(func=reach.position_error, params=TOOL_POSITION),
                "orientation_error": ObservationTerm(func=reach.orientation_error, params=TOOL_ORIENTATION),
                "last_action": ObservationTerm(func=observations.last_action),
            }
        },
        rewards={
            "near": RewardTerm(func=reach.near_position, weight=1.0, params={**TOOL_POSITION, "tolerance_m": 0.2}),
            "exact": RewardTerm(func=reach.near_position, weight=2.0, params={**TOOL_POSITION, "tolerance_m": 0.03}),
            "orientation": RewardTerm(
                func=reach.near_orientation, weight=1.0, params={**TOOL_ORIENTATION, "tolerance": 0.5}
            ),
            "action_rate": RewardTerm(func=rewards.action_rate, weight=-0.02),
            "speed": RewardTerm(func=rewards.joint_speed, weight=-0.005, params={"joints": JOINTS}),
        },
        terminations={"time_out": TerminationTerm(func=terminations.time_out, truncates=True)},
        events={
            "joints": EventTerm(func=events.scale_joint_positions, params={"joints": JOINTS, "factor": (0.8, 1.2)}),
        },
    )


def make_agent() -> AgentConfig:
    """PPO with two networks that see the same observations."""
    return AgentConfig(
        actor=ModelConfig(hidden_dims=(128, 64), distribution_cfg=DistributionConfig(init_std=1.0)),
        critic=ModelConfig(hidden_dims=(128, 64)),
        algorithm=PpoConfig(entropy_coef=0.002, desired_kl=0.02),
        obs_groups={"actor": ("actor",), "critic": ("actor",)},
    )
