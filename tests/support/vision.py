"""A task whose policy sees: the cart-pole from its camera."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mjtrain
from mjtrain.config import (
    AgentConfig,
    CameraConfig,
    CnnConfig,
    DistributionConfig,
    EnvConfig,
    ModelConfig,
    ObservationTerm,
    StreamName,
    TaskConfig,
)
from mjtrain.env.catalog import load_task
from mjtrain.mdp import observation, observations

CARTPOLE = load_task("Cartpole-Balance").env
CLASSES = {"cart": ("cart",), "pole": ("pole",)}


def see(stream: StreamName | None = "rgb", *, one_hot: bool = True, **options: Any) -> ObservationTerm:
    """A term that shows a stream of the camera on the side, or all."""
    return observation(observations.camera, camera="side", stream=stream, one_hot=one_hot).replace(**options)


def make_vision_env(
    images: dict[str, dict[str, ObservationTerm]] | None = None, *, size: int = 32, interval: int = 1
) -> EnvConfig:
    """The cart-pole with groups of images beside its own; by default `image`, three RGB frames."""
    camera = CameraConfig(
        width=size, height=size, streams=("rgb", "depth", "segmentation"), classes=CLASSES, interval=interval
    )
    groups = {"image": {"rgb": see(history=3)}} if images is None else images
    return replace(CARTPOLE, cameras={"side": camera}, observations={**CARTPOLE.observations, **groups})


def make_vision_task(env: EnvConfig | None = None, reads: tuple[str, ...] = ("image",)) -> TaskConfig:
    """A task whose actor reads groups through a small network, and whose critic reads the state."""
    actor = ModelConfig(
        class_name="CNNModel",
        hidden_dims=(16,),
        cnn_cfg=CnnConfig(output_channels=(4, 8)),
        distribution_cfg=DistributionConfig(),
    )
    agent = AgentConfig(num_steps_per_env=8, actor=actor, obs_groups={"actor": reads, "critic": ("actor",)})
    return TaskConfig(name="vision", env=env or make_vision_env(), agent=agent, num_envs=8, max_iterations=2)


def train_vision(task: TaskConfig, log_root: Path) -> Path:
    """Train for two iterations; return the run directory."""
    result = mjtrain.train(
        task,
        num_envs=8,
        max_iterations=2,
        log_root=str(log_root),
        logger="none",
        launch=mjtrain.LaunchConfig(gpu_ids=None, seed=1),
    )
    return result.run_dir
