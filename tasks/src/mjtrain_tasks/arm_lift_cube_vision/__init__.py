"""Arm-Lift-Cube-Vision: pick up a cube that only cameras show, and hold it at a commanded place."""

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
from mjtrain_tasks import arm_lift_cube
from mjtrain_tasks.arm_lift_cube import CUBE_AT_TOOL
from mjtrain_tasks.random_looks import random_looks

CAMERAS = {
    "scene": MountedCameraConfig(pos=(1.0, 0.0, 0.55), xyaxes=(0.0, 1.0, 0.0, -0.616, 0.0, 0.788), fovy=45.0),
    "wrist": MountedCameraConfig(
        body="hand", pos=(0.09, 0.0, 0.02), xyaxes=(0.0, 1.0, 0.0, 0.743, 0.0, 0.669), fovy=70.0
    ),
}
"""One looks at the arm from the front and from above, 0.7 m from where the cube is carried. The other one is at the
hand and looks at what is between the fingertips, which the hand hides from the first one."""

CONVOLUTIONS = CnnConfig(
    input_norm="instance",
    output_channels=(16, 32, 32),
    kernel_size=(5, 3, 3),
    stride=(2, 2, 1),
    padding="none",
    activation="relu",
)

PROPRIOCEPTION = ("joint_positions", "joint_velocities", "opening", "last_action")
"""Observations of Arm-Lift-Cube that need nothing but the arm itself."""


def make_task() -> TaskConfig:
    """Pick up a cube that only cameras show, and hold it at a commanded place.

    Trains in: about 23 minutes after its teacher on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=make_agent(), num_envs=128, num_envs_gpu=128, max_iterations=400)


def make_with_random_looks() -> TaskConfig:
    """The same with colours, light and camera poses that differ between episodes."""
    task, env = make_task(), make_env()
    looks = random_looks(ground="ground", bodies=("(shoulder|elbow|wrist|hand).*",))
    return replace(task, env=replace(env, events=env.events | looks))


def make_without_teacher() -> TaskConfig:
    """The same by PPO from images alone, which lifts the cube after 900 k env steps and rarely places it."""
    return TaskConfig(env=make_env(), agent=make_ppo_agent(), num_envs=128, num_envs_gpu=1024, max_iterations=1000)


def make_fine_tuning() -> TaskConfig:
    """The same by PPO, from a policy that a teacher has taught (`--load`) and the critic of the teacher's run."""
    return TaskConfig(
        env=make_env(), agent=make_fine_tuning_agent(), num_envs=256, num_envs_gpu=1024, max_iterations=250
    )


def make_env() -> EnvConfig:
    """The MDP of Arm-Lift-Cube, of which the actor sees two cameras' images, the arm's own state and the place."""
    env = arm_lift_cube.make_env()
    state = env.observations["actor"]
    return replace(
        env,
        robot=replace(env.robot, cameras=CAMERAS),
        cameras={name: CameraConfig(width=32, height=32, streams=("rgb",)) for name in CAMERAS},
        observations={
            "image": {name: observation(observations.camera, camera=name) for name in CAMERAS},
            "arm": {
                **{name: state[name] for name in PROPRIOCEPTION},
                "place": observation(observations.command, command="place"),
            },
            "cube": {"position": observation(objects.position_in, **CUBE_AT_TOOL).replace(unit="m")},
            "state": state,
        },
    )


def make_agent() -> AgentConfig:
    """DAgger: the actor learns to do from images what a policy of Arm-Lift-Cube does from the state.

    Its convolutions also learn to tell where the cube is from the tool.
    """
    return AgentConfig(
        num_steps_per_env=16,
        save_interval=100,
        actor=ModelConfig(
            class_name="CNNModel",
            cnn_cfg=CONVOLUTIONS,
            hidden_dims=(256, 128),
            distribution_cfg=DistributionConfig(init_std=0.1),
        ),
        algorithm=DaggerConfig(
            teacher_run="auto",
            teacher_task="Arm-Lift-Cube",
            num_learning_epochs=5,
            buffer_rollouts=60,
            learning_rate=1e-3,
            final_learning_rate=2e-5,
            learning_rate_iterations=400,
            auxiliary_cfg=AuxiliaryConfig(group="cube"),
        ),
        obs_groups={"actor": ("image", "arm"), "teacher": ("state",)},
    )


def make_ppo_agent() -> AgentConfig:
    """PPO: the actor sees images, its own joints and the place; the critic sees the state.

    Beside PPO, the actor's convolutions learn to tell where the cube is from the tool.
    """
    state = arm_lift_cube.make_agent()
    return replace(
        state,
        num_steps_per_env=16,
        actor=ModelConfig(
            class_name="CNNModel",
            cnn_cfg=CONVOLUTIONS,
            hidden_dims=(128, 64),
            distribution_cfg=DistributionConfig(init_std=1.0),
        ),
        algorithm=PpoConfig(
            learning_rate=5e-4,
            num_learning_epochs=3,
            num_mini_batches=8,
            schedule="fixed",
            entropy_coef=0.002,
            gamma=0.97,
            auxiliary_cfg=AuxiliaryConfig(group="cube", detach_encoder=True),
        ),
        obs_groups={"actor": ("image", "arm"), "critic": ("state",)},
    )


def make_fine_tuning_agent() -> AgentConfig:
    """PPO with the network of `make_agent`, its small step size at the end, and a critic that learns first."""
    images = make_ppo_agent()
    assert isinstance(images.algorithm, PpoConfig)
    return replace(
        images,
        save_interval=50,
        actor=make_agent().actor,
        algorithm=replace(
            images.algorithm,
            learning_rate=2e-5,
            num_mini_batches=4,
            use_clipped_value_loss=False,
            entropy_coef=0.0,
            critic_iterations=10,
            auxiliary_cfg=AuxiliaryConfig(group="cube"),
        ),
    )
