"""Cartpole-Balance-Vision: keep a pole upright by what a camera sees."""

from dataclasses import replace

from mjtrain import (
    AgentConfig,
    CameraConfig,
    CnnConfig,
    DistributionConfig,
    EnvConfig,
    ModelConfig,
    MountedCameraConfig,
    PpoConfig,
    TaskConfig,
)
from mjtrain.mdp import observation, termination
from mjtrain.mdp.observations import camera
from mjtrain.mdp.terminations import joint_out_of_range
from mjtrain_tasks import cartpole_balance


def make_task() -> TaskConfig:
    """Balance a pole by what a camera sees.

    Trains in: about 6.5 minutes on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=make_agent(), num_envs=128, num_envs_gpu=1024, max_iterations=120)


def make_env() -> EnvConfig:
    """The MDP of Cartpole-Balance at 25 env steps per second, and with ends where the camera's view ends.

    The actor sees the last three frames. The critic, which is not needed after the training, sees the state.
    """
    env = cartpole_balance.make_env()
    front = MountedCameraConfig(pos=(0.0, -1.6, 1.5), xyaxes=(1.0, 0.0, 0.0, 0.0, 0.0, 1.0), fovy=45.0)
    return replace(
        env,
        robot=replace(env.robot, cameras={"front": front}),
        decimation=10,
        cameras={
            "front": CameraConfig(
                width=64, height=32, streams=("rgb",), far_m=4.0, classes={"cart": ("cart",), "pole": ("pole",)}
            )
        },
        terminations={**env.terminations, "cart_left": termination(joint_out_of_range, joint="slider", limit=1.2)},
        observations={
            "image": {"front": observation(camera, camera="front").replace(history=3)},
            "state": env.observations["actor"],
        },
    )


def make_agent() -> AgentConfig:
    """PPO with a small convolutional actor, and a critic that sees the state."""
    return AgentConfig(
        num_steps_per_env=32,
        actor=ModelConfig(
            class_name="CNNModel",
            cnn_cfg=CnnConfig(
                input_norm="instance", output_channels=(16, 32), kernel_size=(8, 4), stride=(4, 2), padding="none"
            ),
            hidden_dims=(64,),
            distribution_cfg=DistributionConfig(init_std=0.7),
        ),
        critic=ModelConfig(hidden_dims=(64, 64)),
        algorithm=PpoConfig(
            num_learning_epochs=3, num_mini_batches=16, learning_rate=5e-4, desired_kl=0.02, entropy_coef=0.002
        ),
        obs_groups={"actor": ("image",), "critic": ("state",)},
    )
