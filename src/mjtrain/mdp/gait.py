"""Walking to a contact schedule: each foot has a stance phase and a swing phase.

The phase of a foot runs from 0 to 1 once per stride. The foot stands while its phase is below the duty factor, and then
swings. Rewards for keeping to such a schedule: Siekmann et al., "Sim-to-Real Learning of All Common Bipedal Gaits via
Periodic Reward Composition", ICRA 2021. Where the velocity command is to stand, all feet stand. With a
`velocity_sensor` they do so only when the robot has stopped: a robot that is pushed while it stands may step until
then, instead of falling.

Parameters of a schedule: `frequency_hz` is the number of strides per second. `offsets` has the phase of each foot at
the start, in strides. `duty` is the fraction of a stride for which a foot stands. `velocity_sensor` is a velocimeter on
the body; with None the command alone decides who stands. `stopped_below` is the planar velocity below which the robot
has stopped, in m/s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mjtrain.config.limits import LINEAR_VELOCITY, TOUCH, VELOCITY_IN_WORLD, AtLeast0, PositionSensors, Positive, Range
from mjtrain.env.sampling import commanded_velocity
from mjtrain.mdp import mirrors
from mjtrain.mdp.velocity import moving
from mjtrain.runtime.deferred_imports import torch
from mjtrain.runtime.errors import RequestError

if TYPE_CHECKING:
    from mjtrain.env.env import Env

DUTY = Range(above=0, below=1)
"""Fraction of a stride: there is a stance and a swing."""

STOPPED_BELOW = 0.2
"""Planar velocity in m/s that a robot takes in without a step."""


@mirrors.mirrored(mirrors.half_stride)
def clock(
    env: Env,
    *,
    frequency_hz: Positive,
    command: str,
    velocity_sensor: Annotated[str | None, LINEAR_VELOCITY] = None,
    stopped_below: AtLeast0 = STOPPED_BELOW,
) -> torch.Tensor:
    """Sine and cosine of the phase of the stride, zero while it should stand. Shape (num_envs, 2)."""
    angle = 2 * torch.pi * frequency_hz * env.step_dt * env.episode_step
    steps = _stepping(env, command, velocity_sensor, stopped_below)
    return torch.stack([angle.sin(), angle.cos()], dim=1) * steps


def swing(
    env: Env,
    frequency_hz: float,
    offsets: tuple[float, ...],
    duty: float,
    command: str,
    velocity_sensor: str | None = None,
    stopped_below: float = STOPPED_BELOW,
) -> torch.Tensor:
    """Progress of each foot through its swing: 0 while it should stand, else from 0 to 1. Shape (num_envs, num_feet).

    Parameters are those of a schedule, which the docstring of the module describes.
    """
    phase = _phases(env, frequency_hz, offsets)
    return ((phase - duty) / (1 - duty)).clamp_min(0.0) * _stepping(env, command, velocity_sensor, stopped_below)


@mirrors.mirrored(mirrors.one_per_sensor)
def foot_heights(env: Env, *, sensors: PositionSensors, radius_m: AtLeast0 = 0.0) -> torch.Tensor:
    """Heights of feet above the ground under them, in m. Shape (num_envs, num_feet).

    Args:
        sensors: Their framepos sensors, in the world's frame.
        radius_m: Distance from the centre of a foot to its sole, which is subtracted.
    """
    positions = env.sensor(sensors).unflatten(1, (-1, 3))
    return positions[..., 2] - radius_m - env.ground.height(positions[..., :2])


def feet_gait(
    env: Env,
    *,
    contact_sensors: tuple[str, ...],
    frequency_hz: Positive,
    offsets: tuple[float, ...],
    duty: Annotated[float, DUTY],
    command: str,
    velocity_sensor: Annotated[str | None, LINEAR_VELOCITY] = None,
    stopped_below: AtLeast0 = STOPPED_BELOW,
) -> torch.Tensor:
    """Fraction of the feet that are in contact, or not, as the schedule says. From 0 to 1. Shape (num_envs,).

    Args:
        contact_sensors: Touch or contact sensors of the feet; a foot is in contact above 1 N, see `Env.touches`.
    """
    swings = swing(env, frequency_hz, offsets, duty, command, velocity_sensor, stopped_below) > 0
    touches = env.touches(contact_sensors)
    _check_feet(swings, "offsets", touches, "contact_sensors")
    return (swings != touches).float().mean(dim=1)


def feet_clearance(
    env: Env,
    *,
    position_sensors: PositionSensors,
    radius_m: AtLeast0,
    height_m: AtLeast0,
    tolerance_m: Positive,
    frequency_hz: Positive,
    offsets: tuple[float, ...],
    duty: Annotated[float, DUTY],
    command: str,
    velocity_sensor: Annotated[str | None, LINEAR_VELOCITY] = None,
    stopped_below: AtLeast0 = STOPPED_BELOW,
) -> torch.Tensor:
    """One where the feet swing at the height that they should, which rises to height_m in mid-swing and falls again.

    Shape (num_envs,).

    Args:
        position_sensors: framepos sensors of the feet, in the world's frame.
        radius_m: Distance from the centre of a foot to its sole, in m.
        height_m: Height of the sole in mid-swing, in m.
        tolerance_m: Error over all feet at which the value is 1/e, in m.
    """
    swings = swing(env, frequency_hz, offsets, duty, command, velocity_sensor, stopped_below)
    wanted = height_m * (torch.pi * swings).sin().square()
    heights = foot_heights(env, sensors=position_sensors, radius_m=radius_m)
    _check_feet(swings, "offsets", heights, "position_sensors")
    error = heights - wanted
    return torch.exp(-error.square().sum(dim=1) / tolerance_m**2)


def swing_load(
    env: Env,
    *,
    contact_sensors: Annotated[tuple[str, ...], TOUCH],
    load_n: Positive,
    frequency_hz: Positive,
    offsets: tuple[float, ...],
    duty: Annotated[float, DUTY],
    command: str,
    velocity_sensor: Annotated[str | None, LINEAR_VELOCITY] = None,
    stopped_below: AtLeast0 = STOPPED_BELOW,
) -> torch.Tensor:
    """Load on the feet that should swing: unlike `feet_gait`, it falls as the robot shifts its weight off a foot.

    Args:
        contact_sensors: Touch sensors of the feet.
        load_n: Force of a foot that counts as 1, and above which no more is counted, in N; such as half of the weight.

    Returns:
        From 0 to the number of feet. Shape (num_envs,).
    """
    swings = swing(env, frequency_hz, offsets, duty, command, velocity_sensor, stopped_below) > 0
    loads = (env.sensor(contact_sensors) / load_n).clamp_max(1.0)
    _check_feet(swings, "offsets", loads, "contact_sensors")
    return (loads * swings).sum(dim=1)


def swing_posture(
    env: Env,
    *,
    joints: tuple[str, ...],
    amplitudes: tuple[float, ...],
    tolerance: Positive,
    frequency_hz: Positive,
    offsets: tuple[float, ...],
    duty: Annotated[float, DUTY],
    command: str,
    velocity_sensor: Annotated[str | None, LINEAR_VELOCITY] = None,
    stopped_below: AtLeast0 = STOPPED_BELOW,
) -> torch.Tensor:
    """One where each leg bends while its foot swings, and is as in the default pose while it stands.

    Each joint is to be away from its default position by its amplitude in mid-swing, and by less before and after. A
    reference of sines for the joints of the legs: Gu et al. 2024, "Humanoid-Gym", arXiv:2404.05695. Shape (num_envs,).

    Args:
        joints: Regular expressions over the joints of the legs. In the order of the model, the joints of each foot
            follow each other.
        amplitudes: Distances of the joints of one leg from the default pose in mid-swing, in rad; for all legs alike.
        tolerance: Norm of the error over all joints at which the value is 1/e, in rad.

    Raises:
        RequestError: The number of joints is not that of the feet times that of the amplitudes.
    """
    swings = swing(env, frequency_hz, offsets, duty, command, velocity_sensor, stopped_below)
    columns = env.engine.layout.qpos.select(joints)
    away = env.state.qpos[:, columns] - env.engine.layout.default_qpos[columns]
    if away.shape[1] != len(offsets) * len(amplitudes):
        raise RequestError(
            f"joints are {away.shape[1]}, and offsets are for {len(offsets)} feet with {len(amplitudes)} amplitudes "
            "each; give an amplitude for each joint of a leg"
        )
    bend = (torch.pi * swings).sin().square()
    wanted = torch.stack([amplitude * bend for amplitude in amplitudes], dim=2).flatten(1)
    return torch.exp(-(away - wanted).square().sum(dim=1) / tolerance**2)


def stepping(
    env: Env,
    *,
    position_sensors: PositionSensors,
    height_m: AtLeast0,
    turn_gain: AtLeast0 = 1.0,
    frequency_hz: Positive,
    offsets: tuple[float, ...],
    duty: Annotated[float, DUTY],
    command: str,
    velocity_sensor: Annotated[str | None, LINEAR_VELOCITY] = None,
    stopped_below: AtLeast0 = STOPPED_BELOW,
) -> torch.Tensor:
    """Actions that step to the schedule and move the feet with the commanded velocity; a controller without feedback.

    A foot on the ground moves against the command, relative to the body, and swings back to where its next step begins.
    The joints that do so come from the inverse of the feet's Jacobian in the default pose. Robots with four or more
    legs roughly walk with it. Shape (num_envs, num_actions).

    Args:
        position_sensors: framepos sensors of the feet.
        height_m: Height of the feet in mid-swing, in m.
        turn_gain: Factor on the turning rate: feet slip more when they turn the body.

    Raises:
        RequestError: An action does not set the position of a joint.
    """
    from mjtrain.env.actions import actions_that_set, find_position_actuators
    from mjtrain.sim.robots.measured import find_feet  # imports MuJoCo, which a help page does not need

    swings = swing(env, frequency_hz, offsets, duty, command, velocity_sensor, stopped_below)
    back = swings - torch.sin(2 * torch.pi * swings) / (2 * torch.pi) - 0.5
    ahead = torch.where(swings > 0, back, 0.5 - _phases(env, frequency_hz, offsets) / duty)
    ahead = ahead * _stepping(env, command, velocity_sensor, stopped_below) * duty / frequency_hz
    layout, names = env.engine.layout, find_position_actuators(env.action_table)
    places, per_displacement = find_feet(env.engine.model, layout.sensors.match(position_sensors), names)
    x, y = torch.tensor(places[:, :2].T, dtype=ahead.dtype, device=env.device)
    _check_feet(swings, "offsets", x[None], "position_sensors")
    along, left, turn = commanded_velocity(env, command).unsqueeze(2).unbind(dim=1)
    up = height_m * (torch.pi * swings).sin().square()
    moved = torch.stack([ahead * (along - turn_gain * turn * y), ahead * (left + turn_gain * turn * x), up], dim=2)
    controls = moved.flatten(1) @ torch.tensor(per_displacement, dtype=ahead.dtype, device=env.device)
    default = torch.stack([layout.default_ctrl[layout.controls[name].start] for name in names])
    return actions_that_set(env.action_table, default + controls)


def feet_air_time(
    env: Env, *, contact_sensors: tuple[str, ...], threshold_s: AtLeast0, command: str = ""
) -> torch.Tensor:
    """Long steps: where a foot lands, the duration of its flight minus a threshold, summed over feet, in seconds.

    As in Rudin et al., "Learning to Walk in Minutes Using Massively Parallel Deep Reinforcement Learning", CoRL 2021.
    Shape (num_envs,).

    Args:
        contact_sensors: Touch or contact sensors of the feet; a foot is in contact above 1 N, see `Env.touches`.
        threshold_s: Duration of a flight that is worth nothing, in seconds; a shorter one is a penalty.
        command: Name of a velocity command: nothing counts while it is to stand. Empty: everything counts.
    """
    times = env.contact_times(contact_sensors)
    flights = ((times.last_air_s - threshold_s) * times.landed).sum(dim=1)
    return flights * moving(env, command) if command else flights


def feet_slide(
    env: Env, *, contact_sensors: tuple[str, ...], velocity_sensors: Annotated[tuple[str, ...], VELOCITY_IN_WORLD]
) -> torch.Tensor:
    """Squared horizontal velocity of feet in contact with the ground, summed over feet, in (m/s)^2. Shape (num_envs,).

    Args:
        contact_sensors: Touch or contact sensors of the feet; a foot is in contact above 1 N, see `Env.touches`.
        velocity_sensors: Their framelinvel sensors, in the world's frame.
    """
    velocities = env.sensor(velocity_sensors).unflatten(1, (-1, 3))[..., :2].square().sum(dim=-1)
    touches = env.touches(contact_sensors)
    _check_feet(touches, "contact_sensors", velocities, "velocity_sensors")
    return (velocities * touches).sum(dim=1)


def _check_feet(one: torch.Tensor, name: str, other: torch.Tensor, other_name: str) -> None:
    """Raise a RequestError if two parameters are for different numbers of feet; one foot would stand for all."""
    if one.shape[1] != other.shape[1]:
        raise RequestError(f"{name} is for {one.shape[1]} feet, and {other_name} for {other.shape[1]}; give one each")


def _stepping(env: Env, command: str, velocity_sensor: str | None, stopped_below: float) -> torch.Tensor:
    """Whether the command is to move, or the robot still moves. Boolean, shape (num_envs, 1)."""
    steps = moving(env, command)
    if velocity_sensor is not None:
        steps = steps | (env.sensor(velocity_sensor)[:, :2].square().sum(dim=1) > stopped_below**2)
    return steps[:, None]


def _phases(env: Env, frequency_hz: float, offsets: tuple[float, ...]) -> torch.Tensor:
    """Phase of the stride of each foot, from 0 to 1. Shape (num_envs, num_feet)."""
    strides = frequency_hz * env.step_dt * env.episode_step
    return torch.stack([(strides + offset) % 1.0 for offset in offsets], dim=1)
