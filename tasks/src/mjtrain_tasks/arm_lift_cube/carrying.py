"""Rewards of a gripper that carries an object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjtrain.mdp import objects, torch

if TYPE_CHECKING:
    from mjtrain.mdp import Env


def pointing_down(env: Env, *, orientation_sensor: str) -> torch.Tensor:
    """Cosine of the angle between the z axis of a tool and down: 1 where it points down. Shape (num_envs,)."""
    _, x, y, _ = env.sensor(orientation_sensor).unbind(dim=1)
    return 2 * (x.square() + y.square()) - 1


def grasped(env: Env, *, sensors: tuple[str, ...]) -> torch.Tensor:
    """One where all contact sensors find a contact, as those of both fingertips with an object. Shape (num_envs,)."""
    return (env.sensor(sensors) > 0).all(dim=1).float()


def lifted(
    env: Env, *, object: str, position_sensor: str, orientation_sensor: str, height_m: tuple[float, float]
) -> torch.Tensor:
    """How far an object is lifted: 0 where it rests, 1 where it is high and at a tool that points down.

    Args:
        object: Name of the free joint.
        position_sensor: A framepos sensor on the tool, in m.
        orientation_sensor: A framequat sensor on the tool.
        height_m: Height up to which it is not lifted, and from which it is, in m in the world's frame.

    Returns:
        Shape (num_envs,).
    """
    rest, high = height_m
    height = (env.qpos(object)[:, 2] - rest) / (high - rest)
    at_tool = objects.near_tool(env, object=object, position_sensor=position_sensor, tolerance_m=0.1)
    down = pointing_down(env, orientation_sensor=orientation_sensor).clamp_min(0.0)
    return height.clamp(0.0, 1.0) * at_tool * down


def carried_near(
    env: Env,
    *,
    command: str,
    object: str,
    position_sensor: str,
    orientation_sensor: str,
    height_m: tuple[float, float],
    tolerance_m: float,
) -> torch.Tensor:
    """How near a lifted object is to its commanded position.

    Args:
        command: Name of a command with a position.
        object: Name of the free joint.
        position_sensor: See `lifted`.
        orientation_sensor: See `lifted`.
        height_m: See `lifted`.
        tolerance_m: Scale of the distance, in m, as in `objects.near_position`.

    Returns:
        Shape (num_envs,).
    """
    up = lifted(
        env, object=object, position_sensor=position_sensor, orientation_sensor=orientation_sensor, height_m=height_m
    )
    return up * objects.near_position(env, command=command, object=object, tolerance_m=tolerance_m)
