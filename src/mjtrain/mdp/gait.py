"""Walking in step with a clock: each foot has a time to stand and a time to swing.

A foot's phase runs from 0 to 1 once per stride; it stands while its phase is below the duty factor, and then swings.
Rewarding feet for keeping to such a schedule: Siekmann et al., "Sim-to-Real Learning of All Common Bipedal Gaits via
Periodic Reward Composition", ICRA 2021. Without a command to move, all feet stand.
"""

from typing import TYPE_CHECKING

import torch

from mjtrain.mdp.velocity import moving

if TYPE_CHECKING:
    from mjtrain.env.env import Env


def clock(env: "Env", *, frequency_hz: float, command: str) -> torch.Tensor:
    """Observe sine and cosine of the stride's phase; zero while the command is to stand. Shape (num_envs, 2)."""
    angle = 2 * torch.pi * frequency_hz * env.step_dt * env.episode_step
    return torch.stack([angle.sin(), angle.cos()], dim=1) * moving(env, command)[:, None]


def swing(env: "Env", *, frequency_hz: float, offsets: tuple[float, ...], duty: float, command: str) -> torch.Tensor:
    """How far each foot is through its swing: 0 while it should stand, else from 0 to 1.

    Args:
        env: The environment.
        frequency_hz: Strides per second.
        offsets: Phase of each foot at the start, in strides.
        duty: Part of a stride that a foot stands.
        command: Name of the velocity command.

    Returns:
        Shape (num_envs, num_feet).
    """
    strides = frequency_hz * env.step_dt * env.episode_step
    phase = torch.stack([(strides + offset) % 1.0 for offset in offsets], dim=1)
    return ((phase - duty) / (1 - duty)).clamp_min(0.0) * moving(env, command)[:, None]


def foot_heights(env: "Env", *, sensors: tuple[str, ...], radius_m: float = 0.0) -> torch.Tensor:
    """Height of feet above the ground under them, in m.

    Args:
        env: The environment.
        sensors: Their framepos sensors, in the world's frame.
        radius_m: Subtracted: from the centre of a foot to its sole.

    Returns:
        Shape (num_envs, num_feet).
    """
    positions = env.sensor(sensors).unflatten(1, (-1, 3))
    return positions[..., 2] - radius_m - env.ground.height(positions[..., :2])


def keep_step(
    env: "Env",
    *,
    contact_sensors: tuple[str, ...],
    frequency_hz: float,
    offsets: tuple[float, ...],
    duty: float,
    command: str,
) -> torch.Tensor:
    """Part of the feet that touch the ground just when they should.

    Args:
        env: The environment.
        contact_sensors: Touch sensors of the feet, in N.
        frequency_hz: See `swing`.
        offsets: See `swing`.
        duty: See `swing`.
        command: See `swing`.

    Returns:
        From 0 to 1. Shape (num_envs,).
    """
    swings = swing(env, frequency_hz=frequency_hz, offsets=offsets, duty=duty, command=command) > 0
    touches = env.sensor(contact_sensors) > 1.0
    return (swings != touches).float().mean(dim=1)


def lift_feet(
    env: "Env",
    *,
    position_sensors: tuple[str, ...],
    radius_m: float,
    height_m: float,
    tolerance_m: float,
    frequency_hz: float,
    offsets: tuple[float, ...],
    duty: float,
    command: str,
) -> torch.Tensor:
    """One where the feet swing as high as they should: half a wave that rises to height_m in mid-swing.

    Args:
        env: The environment.
        position_sensors: framepos sensors of the feet, in the world's frame.
        radius_m: From the centre of a foot to its sole, in m.
        height_m: Height of the sole in mid-swing, in m.
        tolerance_m: Error, over all feet, at which 1/e is left, in m.
        frequency_hz: See `swing`.
        offsets: See `swing`.
        duty: See `swing`.
        command: See `swing`.

    Returns:
        Shape (num_envs,).
    """
    swings = swing(env, frequency_hz=frequency_hz, offsets=offsets, duty=duty, command=command)
    wanted = height_m * (torch.pi * swings).sin().square()
    error = foot_heights(env, sensors=position_sensors, radius_m=radius_m) - wanted
    return torch.exp(-error.square().sum(dim=1) / tolerance_m**2)


def slip(env: "Env", *, contact_sensors: tuple[str, ...], velocity_sensors: tuple[str, ...]) -> torch.Tensor:
    """Squared planar velocity of feet that touch the ground, summed, in (m/s)^2.

    Args:
        env: The environment.
        contact_sensors: Touch sensors of the feet, in N.
        velocity_sensors: Their framelinvel sensors, in the world's frame.

    Returns:
        Shape (num_envs,).
    """
    velocities = env.sensor(velocity_sensors).unflatten(1, (-1, 3))[..., :2].square().sum(dim=-1)
    return (velocities * (env.sensor(contact_sensors) > 1.0)).sum(dim=1)
