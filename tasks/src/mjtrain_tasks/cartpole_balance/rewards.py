"""Reward terms of the cart and its pole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjtrain.mdp import torch

if TYPE_CHECKING:
    from mjtrain.mdp import Env


def upright(env: Env, *, sensor: str) -> torch.Tensor:
    """Cosine of the pole's angle: 1 upright, -1 hanging. Shape (num_envs,).

    Args:
        sensor: Sensor that gives the pole's axis as a unit vector in the world frame.
    """
    return env.sensor(sensor)[:, 2]


def centered(env: Env, *, joint: str, width: float) -> torch.Tensor:
    """Closeness of the cart to the middle of its rail: 1 there, 1/e at the width. Shape (num_envs,).

    Args:
        joint: The cart's slide.
        width: Distance, in m.
    """
    return torch.exp(-(env.qpos(joint)[:, 0] / width).square())
