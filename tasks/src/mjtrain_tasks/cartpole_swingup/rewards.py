"""Reward terms of the swing-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjtrain.mdp import torch

if TYPE_CHECKING:
    from mjtrain.mdp import Env


def upright_and_centered(env: Env, *, sensor: str, joint: str, width: float) -> torch.Tensor:
    """Height of the pole, from 0 hanging to 1 upright, reduced away from the middle of the rail. Shape (num_envs,).

    Args:
        sensor: Sensor that gives the pole's axis as a unit vector in the world frame.
        joint: The cart's slide.
        width: Distance from the middle at which the height is multiplied by 1/2 + 1/(2e), in m.
    """
    height = (1.0 + env.sensor(sensor)[:, 2]) / 2
    near = torch.exp(-(env.qpos(joint)[:, 0] / width).square())
    return height * (1.0 + near) / 2


def still_when_upright(env: Env, *, sensor: str, joint: str, width: float) -> torch.Tensor:
    """Height of the pole, from 0 hanging to 1 upright, reduced where it turns fast. Shape (num_envs,).

    Args:
        sensor: Sensor that gives the pole's axis as a unit vector in the world frame.
        joint: The pole's hinge.
        width: Angular speed at which the height is multiplied by 1/e, in rad/s.
    """
    height = (1.0 + env.sensor(sensor)[:, 2]) / 2
    return height * torch.exp(-(env.qvel(joint)[:, 0] / width).square())
