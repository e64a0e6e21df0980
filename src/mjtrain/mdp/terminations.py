"""Conditions that end an episode, for termination terms."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from mjtrain.env.env import Env


def time_out(env: "Env") -> torch.Tensor:
    """The episode has lasted episode_length_s. Shape (num_envs,)."""
    return env.episode_step >= env.max_episode_steps


def joint_out_of_range(env: "Env", *, joint: str, limit: float) -> torch.Tensor:
    """A slide or hinge is further than limit (m or rad) from its zero. Shape (num_envs,)."""
    return env.qpos(joint)[:, 0].abs() > limit


def bad_orientation(env: "Env", *, sensor: str, limit: float) -> torch.Tensor:
    """A body is tilted by more than a limit.

    Args:
        env: The environment.
        sensor: A framezaxis sensor: the world's z axis in the frame of the body, or the reverse.
        limit: Angle between the two, in rad.

    Returns:
        Shape (num_envs,).
    """
    return env.sensor(sensor)[:, 2].clamp(-1.0, 1.0).arccos() > limit


def illegal_contact(env: "Env", *, sensors: tuple[str, ...], threshold: float = 0.0) -> torch.Tensor:
    """A touch or contact sensor reads more than threshold. Shape (num_envs,)."""
    return (env.sensor(sensors) > threshold).any(dim=1)


def terrain_out_of_bounds(env: "Env", *, joint: str, margin_m: float) -> torch.Tensor:
    """A free body is nearer than margin_m to the edge of the generated ground. Shape (num_envs,)."""
    return env.ground.outside(env.qpos(joint)[:, :2], margin_m)


def root_height_below_minimum(env: "Env", *, joint: str, height_m: float) -> torch.Tensor:
    """A free body is less than height_m above the ground. Shape (num_envs,)."""
    pose = env.qpos(joint)
    return pose[:, 2] - env.ground.height(pose[:, :2]) < height_m
