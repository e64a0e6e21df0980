"""Hand-Reorient-Cube-Vision: turn a cube that only a camera shows, in the palm of a hand."""

from dataclasses import replace

from mjtrain import (
    AgentConfig,
    AuxiliaryConfig,
    CameraConfig,
    CnnConfig,
    DaggerConfig,
    DistributionConfig,
    EnvConfig,
    ModelConfig,
    MountedCameraConfig,
    PpoConfig,
    TaskConfig,
)
from mjtrain.mdp import objects, observation, observations
from mjtrain_tasks import hand_reorient
from mjtrain_tasks.hand_reorient import CUBE, PALM
from mjtrain_tasks.random_looks import random_looks

CAMERA = MountedCameraConfig(pos=(0.08, -0.13, 0.58), xyaxes=(1.0, 0.0, 0.0, 0.0, 0.883, 0.469), fovy=33.0)
"""Looks down into the palm from the side of the thumb, from 0.28 m away."""

PROPRIOCEPTION = ("joint_positions", "joint_velocities", "fingertips", "targets", "last_action")
"""Observations of Hand-Reorient-Cube that need nothing but the hand itself."""


def make_task() -> TaskConfig:
    """Turn a cube that only a camera shows, in the palm of a hand, to one commanded orientation after the other.

    Trains in: about 53 minutes after its teacher on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=make_agent(), num_envs=128, num_envs_gpu=256, max_iterations=500)


def make_with_random_looks() -> TaskConfig:
    """The same with colours, light and a camera pose that differ between episodes."""
    task, env = make_task(), make_env()
    looks = random_looks(ground="floor", bodies=("forearm", "wrist", "palm", "[A-Z]{2}_.*"))
    return replace(task, env=replace(env, events=env.events | looks))


def make_without_teacher() -> TaskConfig:
    """The same by PPO from images alone, after which the cube is seen well but not turned."""
    env = make_env()
    privileged = {"state": hand_reorient.make_env().observations["critic"]}
    return TaskConfig(
        env=replace(env, observations=env.observations | privileged),
        agent=make_ppo_agent(),
        num_envs=256,
        num_envs_gpu=512,
        max_iterations=500,
    )


def make_env() -> EnvConfig:
    """The MDP of Hand-Reorient-Cube, of which the actor sees images, the hand's own state and the goal.

    Images are RGB, depth, and the cube and the hand by segmentation.
    """
    env = hand_reorient.make_env()
    state = env.observations["actor"]
    return replace(
        env,
        robot=replace(env.robot, cameras={"scene": CAMERA}),
        cameras={
            "scene": CameraConfig(
                width=48,
                height=48,
                streams=("rgb", "depth", "segmentation"),
                near_m=0.1,
                far_m=0.6,
                classes={"cube": ("cube",), "hand": ("palm", "LF_metacarpal", "(FF|MF|RF|LF|TH)_.*")},
            )
        },
        observations={
            "image": {"scene": observation(observations.camera, camera="scene")},
            "hand": {
                **{name: state[name] for name in PROPRIOCEPTION},
                "goal": observation(observations.command, command="goal"),
            },
            "cube": {
                "position": observation(objects.position_in, object=CUBE, position_sensor=PALM).replace(unit="m"),
                "orientation": observation(objects.orientation_in, object=CUBE).replace(
                    estimate_error=objects.orientation_difference, unit="rad"
                ),
            },
            "state": state,
        },
    )


def make_agent() -> AgentConfig:
    """DAgger: the actor learns to do from images what a policy of Hand-Reorient-Cube does from the state.

    Its convolutions also learn to tell where the cube is and how it lies.
    """
    student = make_ppo_agent()
    return replace(
        student,
        num_steps_per_env=16,
        save_interval=100,
        actor=replace(student.actor, hidden_dims=(512, 256), distribution_cfg=DistributionConfig(init_std=0.1)),
        algorithm=DaggerConfig(
            teacher_run="auto",
            teacher_task="Hand-Reorient-Cube",
            num_learning_epochs=4,
            learning_rate=1e-3,
            final_learning_rate=2e-5,
            learning_rate_iterations=500,
            auxiliary_cfg=AuxiliaryConfig(group="cube", hidden_dims=(256,)),
        ),
        obs_groups={"actor": ("image", "hand"), "teacher": ("state",)},
    )


def make_ppo_agent() -> AgentConfig:
    """PPO: the actor sees images, its own joints and the goal; the critic sees the state.

    Beside PPO, the actor's convolutions learn to tell where the cube is and how it lies.
    """
    state = hand_reorient.make_agent()
    return replace(
        state,
        num_steps_per_env=8,
        actor=ModelConfig(
            class_name="CNNModel",
            activation="relu",
            cnn_cfg=CnnConfig(
                input_norm="instance",
                output_channels=(16, 32, 64),
                kernel_size=(5, 3, 3),
                stride=(2, 2, 2),
                padding="none",
                activation="relu",
            ),
            hidden_dims=(256, 128),
            distribution_cfg=DistributionConfig(init_std=0.5),
        ),
        algorithm=PpoConfig(
            learning_rate=1e-3,
            num_learning_epochs=3,
            num_mini_batches=8,
            schedule="fixed",
            entropy_coef=0.0,
            gamma=0.97,
            lam=0.92,
            auxiliary_cfg=AuxiliaryConfig(group="cube", hidden_dims=(256,), detach_encoder=True),
        ),
        obs_groups={"actor": ("image", "hand"), "critic": ("state",)},
    )
