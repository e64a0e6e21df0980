"""Following a velocity: the command, rewards for tracking it, and curricula.

The command is (ahead, left, turn): the body's velocity along its x and y in m/s, and its angular velocity about z in
rad/s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mjtrain.config.limits import UP, AtLeast0, Fraction, Gyro, Positive, Velocimeter
from mjtrain.env.sampling import commanded_velocity, drawn_velocity
from mjtrain.mdp import mirrors
from mjtrain.runtime.deferred_imports import torch
from mjtrain.sim import rotations

if TYPE_CHECKING:
    from mjtrain.env.env import Env


def velocity_command(
    env: Env,
    *,
    speed: AtLeast0,
    turn: AtLeast0,
    standing_fraction: Fraction = 0.1,
    heading_fraction: Fraction = 0.0,
    curriculum: str = "",
    least: Fraction = 0.3,
    sideways: Fraction = 1.0,
) -> torch.Tensor:
    """Draw velocity commands, for `approach` to refine.

    Args:
        speed: Largest planar speed, in m/s. Directions and speeds are uniform.
        turn: Largest angular velocity, in rad/s.
        standing_fraction: Fraction of commands that are zero.
        heading_fraction: Fraction of the others that hold a random heading instead of an angular velocity.
        curriculum: Name of a curriculum term whose level scales speed and turn, from the factor `least` at level 0 to
            1 at level 1; empty for the factor 1.
        least: See curriculum.
        sideways: Largest speed to the left and right, as a fraction of speed.

    Returns:
        Ahead, left, turn, heading in rad, and 1 where the heading is held, else 0. Shape (num_envs, 5).
    """
    noise = torch.rand(env.num_envs, 6, generator=env.rng, device=env.device)
    direction, size, turning, heading, stands, heads = noise.unbind(dim=1)
    moves = (stands >= standing_fraction).to(noise.dtype)
    if curriculum:
        moves = moves * (least + (1 - least) * env.level(curriculum))
    angle = 2 * torch.pi * direction
    pace = speed * size * moves
    holds = ((heads < heading_fraction) & (stands >= standing_fraction)).to(noise.dtype)
    return torch.stack(
        [
            pace * angle.cos(),
            sideways * pace * angle.sin(),
            turn * (2 * turning - 1) * moves,
            2 * torch.pi * heading - torch.pi,
            holds,
        ],
        dim=1,
    )


def steer(env: Env, values: torch.Tensor) -> torch.Tensor:
    """Command ahead, left (m/s) and turn (rad/s) by hand, as a draw of `velocity_command`. Shape (num_envs, 5)."""
    return torch.cat([values, values.new_zeros(2)]).expand(env.num_envs, 5)


@mirrors.mirrored(mirrors.planar_velocity)
def approach(
    env: Env,
    drawn: torch.Tensor,
    before: torch.Tensor | None,
    *,
    joint: str,
    gain: float,
    turn: AtLeast0,
    acceleration: Positive,
    turn_acceleration: Positive,
) -> torch.Tensor:
    """Turn towards the heading where one was drawn, and limit the acceleration of the command: ahead, left, turn.

    Shape (num_envs, 3).

    Args:
        drawn: What `velocity_command` gave. Shape (num_envs, 5).
        before: The command an env step earlier. Shape (num_envs, 3).
        gain: Angular velocity per rad of heading error, in 1/s.
        turn: Largest angular velocity towards a heading, in rad/s.
        acceleration: Largest change of the planar velocity, in m/s^2.
        turn_acceleration: Largest change of the angular velocity, in rad/s^2.
    """
    env.engine.layout.qpos.check_free(joint)
    error = rotations.wrap(drawn[:, 3] - rotations.yaw(env.qpos(joint)[:, 3:7]))
    turning = torch.where(drawn[:, 4] > 0, (gain * error).clamp(-turn, turn), drawn[:, 2])
    wanted = torch.cat([drawn[:, :2], turning[:, None]], dim=1)
    if before is None:
        return torch.zeros_like(wanted)
    change = wanted - before
    planar, turning = change[:, :2], change[:, 2:]
    longest = acceleration * env.step_dt
    planar = planar * (longest / planar.norm(dim=1, keepdim=True).clamp_min(longest))
    turning = turning.clamp(-turn_acceleration * env.step_dt, turn_acceleration * env.step_dt)
    return before + torch.cat([planar, turning], dim=1)


def moving(env: Env, command: str, threshold: float = 0.05) -> torch.Tensor:
    """Whether a velocity command is not to stand. Boolean, shape (num_envs,)."""
    return commanded_velocity(env, command).square().sum(dim=1) > threshold**2


def track_lin_vel_xy(env: Env, *, command: str, sensor: Velocimeter, tolerance: Positive) -> torch.Tensor:
    """exp(-error^2 / tolerance^2) of the planar velocity against the velocity command. Shape (num_envs,).

    Args:
        sensor: A velocimeter on the body, in m/s.
        tolerance: Error at which the value is 1/e, in m/s.
    """
    error = (commanded_velocity(env, command)[:, :2] - env.sensor(sensor)[:, :2]).square().sum(dim=1)
    return torch.exp(-error / tolerance**2)


def track_ang_vel_z(env: Env, *, command: str, sensor: Gyro, tolerance: Positive) -> torch.Tensor:
    """exp(-error^2 / tolerance^2) of the angular velocity about the body's z against the velocity command.

    Shape (num_envs,).

    Args:
        sensor: A gyro on the body, in rad/s.
        tolerance: Error at which the value is 1/e, in rad/s.
    """
    error = (commanded_velocity(env, command)[:, 2] - env.sensor(sensor)[:, 2]).square()
    return torch.exp(-error / tolerance**2)


def lin_vel_xy_error(env: Env, *, command: str, sensor: Velocimeter) -> torch.Tensor:
    """Distance of the planar velocity from the one that was drawn, before `approach` limits it, in m/s.

    Shape (num_envs,).

    Args:
        sensor: A velocimeter on the body, in m/s.
    """
    return (drawn_velocity(env, command)[:, :2] - env.sensor(sensor)[:, :2]).norm(dim=1)


def ang_vel_z_error(env: Env, *, command: str, sensor: Gyro) -> torch.Tensor:
    """Distance of the angular velocity about the body's z from the velocity command, in rad/s. Shape (num_envs,).

    Args:
        sensor: A gyro on the body, in rad/s.
    """
    return (commanded_velocity(env, command)[:, 2] - env.sensor(sensor)[:, 2]).abs()


def lin_vel_z(env: Env, *, sensor: Velocimeter) -> torch.Tensor:
    """Squared velocity along the body's z, in (m/s)^2, from a velocimeter. Shape (num_envs,)."""
    return env.sensor(sensor)[:, 2].square()


def ang_vel_xy(env: Env, *, sensor: Gyro) -> torch.Tensor:
    """Squared angular velocity about the body's x and y, in (rad/s)^2, from a gyro. Shape (num_envs,)."""
    return env.sensor(sensor)[:, :2].square().sum(dim=1)


def flat_orientation(env: Env, *, sensor: Annotated[str, UP]) -> torch.Tensor:
    """Squared sine of the angle between a body's z and the world's, from a framezaxis sensor. Shape (num_envs,)."""
    return env.sensor(sensor)[:, :2].square().sum(dim=1)


def command_level(
    env: Env, level: torch.Tensor, *, reward: str, full: Positive, share: Fraction, step: Positive
) -> torch.Tensor:
    """Widen the commands of worlds that track them well; for a curriculum. Shape (num_envs,).

    Args:
        level: From 0 to 1. Shape (num_envs,).
        reward: Name of the tracking reward.
        full: Reward per second when tracking is perfect: the weight of the term.
        share: Fraction of it above which the level rises.
        step: Rise of the level. After an episode below half of share, it falls by half of step.
    """
    seconds = env.statistics.episode_steps().clamp_min(1) * env.step_dt
    earned = env.statistics.episode_return(reward) / (full * seconds)
    return level + step * (earned > share) - step / 2 * (earned < share / 2)


def terrain_level(
    env: Env, level: torch.Tensor, *, joint: str, command: str, far_m: Positive, step: Positive = 1.0
) -> torch.Tensor:
    """Up where the robot left its patch, a level down where it walked less than half of the commanded distance.

    Args:
        env: Its ground must be generated.
        far_m: Distance from the start at which it has left its patch, in m.
        step: Levels that it goes up.
    """
    env.engine.layout.qpos.check_free(joint)
    start = env.engine.layout.qpos[joint].start
    columns = slice(start, start + 2)
    walked_m = (env.state.qpos[:, columns] - env.start_qpos[:, columns]).norm(dim=1)
    seconds = env.statistics.episode_steps() * env.step_dt
    asked_m = commanded_velocity(env, command)[:, :2].norm(dim=1) * seconds
    up = walked_m > far_m
    return level + step * up - (~up & (walked_m < asked_m / 2)).to(level.dtype)
