"""Arm-Reach-Vision: bring the tool of a six-joint arm to a ball that only a camera shows."""

from typing import Any

from mjtrain import (
    ActionTerm,
    AgentConfig,
    AuxiliaryConfig,
    CameraConfig,
    CnnConfig,
    DistributionConfig,
    EnvConfig,
    ModelConfig,
    MountedCameraConfig,
    PpoConfig,
    RobotConfig,
    SensorConfig,
    TaskConfig,
    mdp,
)
from mjtrain.mdp import events, observations, reach, rewards, terminations
from mjtrain_tasks.models import ARM

ARM_JOINTS = ("shoulder_.*", "elbow", "wrist_.*")
BALL = {"ball_x": (0.3, 0.6), "ball_y": (-0.25, 0.35), "ball_z": (0.2, 0.5)}
"""Joints of the ball and the bounds of its place, in m in the world's frame."""

TOOL = {"command": "ball", "position_sensor": "tool_position"}


def make_task() -> TaskConfig:
    """Bring the tool of a six-joint arm to a ball that only a camera shows.

    Trains in: about 8 minutes on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=make_agent(), num_envs=128, num_envs_gpu=1024, max_iterations=400)


def make_robot() -> Any:
    """Return the arm with a ball that nothing touches; joints of its own carry it to where an episode wants it."""
    import mujoco

    spec = mujoco.MjSpec.from_file(str(ARM))
    ball = spec.worldbody.add_body(name="ball", gravcomp=1.0)
    for joint, axis in zip(BALL, ((1, 0, 0), (0, 1, 0), (0, 0, 1)), strict=True):
        ball.add_joint(name=joint, type=mujoco.mjtJoint.mjJNT_SLIDE, axis=axis, limited=False)
    ball.add_geom(
        name="ball",
        type=mujoco.mjtGeom.mjGEOM_SPHERE,
        size=[0.04, 0, 0],
        mass=0.1,
        rgba=[0.85, 0.15, 0.1, 1.0],
        contype=0,
        conaffinity=0,
    )
    middle = [0.5 * (low + high) for low, high in BALL.values()]
    for key in spec.keys:
        key.qpos = [*key.qpos, *middle]
    return spec


def make_env() -> EnvConfig:
    """The MDP: 25 env steps per second; an episode is one place of the ball, for 3 s."""
    return EnvConfig(
        robot=RobotConfig(
            spec=make_robot,
            sensors={"ball_position": SensorConfig(type="framepos", object="ball")},
            cameras={"scene": MountedCameraConfig(pos=(1.25, 0.05, 0.75), xyaxes=(0, 1, 0, -0.42, 0, 0.9), fovy=50.0)},
        ),
        decimation=8,
        episode_length_s=3.0,
        cameras={"scene": CameraConfig(width=48, height=48, streams=("rgb", "depth"), far_m=2.0)},
        actions={"joints": ActionTerm(actuators=ARM_JOINTS, scale=0.5, from_home=True, clip=(-6.0, 6.0))},
        commands={
            "ball": mdp.command(observations.sensor, sensor="ball_position").replace(
                errors={"distance": mdp.error(reach.distance, "m", **TOOL).replace(settling_s=2.0)}
            )
        },
        observations={
            "image": {"scene": mdp.observation(observations.camera, camera="scene")},
            "joints": {
                "joint_positions": mdp.observation(observations.joint_pos_rel, joints=ARM_JOINTS),
                "joint_velocities": mdp.observation(observations.joint_velocities, joints=ARM_JOINTS),
                "last_action": mdp.observation(observations.last_action),
            },
            "ball": {"position_error": mdp.observation(reach.position_error, **TOOL)},
        },
        rewards={
            "near": mdp.reward(reach.near_position, 1.0, **TOOL, tolerance_m=0.2),
            "exact": mdp.reward(reach.near_position, 2.0, **TOOL, tolerance_m=0.04),
            "action_rate": mdp.reward(rewards.action_rate, -0.02),
            "speed": mdp.reward(rewards.joint_speed, -0.005, joints=ARM_JOINTS),
        },
        terminations={"time_out": mdp.truncation(terminations.time_out)},
        events={
            "arm": mdp.reset_event(events.reset_joints_by_scale, joints=ARM_JOINTS, factor=(0.9, 1.1)),
            **{
                joint: mdp.reset_event(
                    events.reset_joints_by_offset,
                    joint=joint,
                    position=(0.5 * (low - high), 0.5 * (high - low)),
                    velocity=(0.0, 0.0),
                )
                for joint, (low, high) in BALL.items()
            },
        },
    )


def make_agent() -> AgentConfig:
    """PPO: the actor sees images and its own joints; the critic sees where the ball is from the tool instead.

    Beside PPO, the actor's convolutions learn to tell where the ball is from the tool.
    """
    return AgentConfig(
        num_steps_per_env=16,
        actor=ModelConfig(
            class_name="CNNModel",
            cnn_cfg=CnnConfig(output_channels=(16, 32), kernel_size=(8, 4), stride=(4, 2), padding="none"),
            hidden_dims=(128, 64),
            distribution_cfg=DistributionConfig(init_std=1.0),
        ),
        critic=ModelConfig(hidden_dims=(128, 64)),
        algorithm=PpoConfig(
            num_learning_epochs=3, entropy_coef=0.002, schedule="fixed", auxiliary_cfg=AuxiliaryConfig(group="ball")
        ),
        obs_groups={"actor": ("image", "joints"), "critic": ("joints", "ball")},
    )
