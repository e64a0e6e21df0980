"""Following a velocity: the command, its tracking, and the curricula that go with it.

The command is (ahead, left, turn): the body's velocity along its x and y in m/s, and its turning rate about z in rad/s.
"""

from typing import TYPE_CHECKING

import torch

from mjtrain import rotations

if TYPE_CHECKING:
    from mjtrain.env.env import Env


def velocity_command(
    env: "Env",
    *,
    speed: float,
    turn: float,
    standing_fraction: float = 0.1,
    heading_fraction: float = 0.0,
    curriculum: str = "",
    least: float = 0.3,
) -> torch.Tensor:
    """Draw velocity commands, for `approach` to refine.

    Args:
        env: The environment.
        speed: Largest planar speed, in m/s; directions are uniform, speeds too.
        turn: Largest turning rate, in rad/s.
        standing_fraction: Fraction of commands that are zero.
        heading_fraction: Fraction of the others that hold a random heading instead of a turning rate.
        curriculum: Name of a curriculum term whose level scales speed and turn from `least` of them (level 0) to all
            (level 1); empty for all of them always.
        least: See curriculum.

    Returns:
        Ahead, left, turn, heading in rad, and 1 where the heading counts. Shape (num_envs, 5).
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
            pace * angle.sin(),
            turn * (2 * turning - 1) * moves,
            2 * torch.pi * heading - torch.pi,
            holds,
        ],
        dim=1,
    )


def steer(env: "Env", values: torch.Tensor) -> torch.Tensor:
    """Command ahead, left (m/s) and turn (rad/s) by hand, as a draw of `velocity_command`. Shape (num_envs, 5)."""
    return torch.cat([values, values.new_zeros(2)]).expand(env.num_envs, 5)


def approach(
    env: "Env",
    drawn: torch.Tensor,
    before: torch.Tensor | None,
    *,
    joint: str,
    gain: float,
    turn: float,
    acceleration: float,
    turn_acceleration: float,
) -> torch.Tensor:
    """Turn towards the heading where one was drawn, and change speed no faster than a body can.

    Args:
        env: The environment.
        drawn: What `velocity_command` gave. Shape (num_envs, 5).
        before: The command an env step earlier. Shape (num_envs, 3).
        joint: Name of the free joint.
        gain: Turning rate per rad of heading error, in 1/s.
        turn: Largest turning rate towards a heading, in rad/s.
        acceleration: Largest change of the planar velocity, in m/s^2.
        turn_acceleration: Largest change of the turning rate, in rad/s^2.

    Returns:
        Ahead, left, turn. Shape (num_envs, 3).
    """
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


def moving(env: "Env", command: str, threshold: float = 0.05) -> torch.Tensor:
    """Whether a velocity command asks for motion at all. Boolean, shape (num_envs,)."""
    return env.command(command).square().sum(dim=1) > threshold**2


def track_planar(env: "Env", *, command: str, sensor: str, tolerance: float) -> torch.Tensor:
    """One at the commanded planar velocity, falling off with the squared error.

    Args:
        env: The environment.
        command: Name of the velocity command.
        sensor: A velocimeter on the body, in m/s.
        tolerance: Error at which 1/e is left, in m/s.

    Returns:
        Shape (num_envs,).
    """
    error = (env.command(command)[:, :2] - env.sensor(sensor)[:, :2]).square().sum(dim=1)
    return torch.exp(-error / tolerance**2)


def track_turn(env: "Env", *, command: str, sensor: str, tolerance: float) -> torch.Tensor:
    """One at the commanded turning rate, falling off with the squared error.

    Args:
        env: The environment.
        command: Name of the velocity command.
        sensor: A gyro on the body, in rad/s.
        tolerance: Error at which 1/e is left, in rad/s.

    Returns:
        Shape (num_envs,).
    """
    error = (env.command(command)[:, 2] - env.sensor(sensor)[:, 2]).square()
    return torch.exp(-error / tolerance**2)


def planar_error(env: "Env", *, command: str, sensor: str) -> torch.Tensor:
    """Distance of the planar velocity from the one that was drawn, in m/s; `approach` makes no allowance here.

    Args:
        env: The environment.
        command: Name of the velocity command.
        sensor: A velocimeter on the body, in m/s.

    Returns:
        Shape (num_envs,).
    """
    return (env.drawn_command(command)[:, :2] - env.sensor(sensor)[:, :2]).norm(dim=1)


def turn_error(env: "Env", *, command: str, sensor: str) -> torch.Tensor:
    """Distance of the turning rate from the commanded one, in rad/s.

    Args:
        env: The environment.
        command: Name of the velocity command.
        sensor: A gyro on the body, in rad/s.

    Returns:
        Shape (num_envs,).
    """
    return (env.command(command)[:, 2] - env.sensor(sensor)[:, 2]).abs()


def vertical_speed(env: "Env", *, sensor: str) -> torch.Tensor:
    """Squared velocity along the body's z, in (m/s)^2, from a velocimeter. Shape (num_envs,)."""
    return env.sensor(sensor)[:, 2].square()


def rocking(env: "Env", *, sensor: str) -> torch.Tensor:
    """Squared turning rate about the body's x and y, in (rad/s)^2, from a gyro. Shape (num_envs,)."""
    return env.sensor(sensor)[:, :2].square().sum(dim=1)


def leaning(env: "Env", *, sensor: str) -> torch.Tensor:
    """Squared sine of the angle between a body's z and the world's, from a framezaxis sensor. Shape (num_envs,)."""
    return env.sensor(sensor)[:, :2].square().sum(dim=1)


def command_level(
    env: "Env", level: torch.Tensor, *, reward: str, full: float, share: float, step: float
) -> torch.Tensor:
    """Curriculum: widen the commands of worlds that follow them.

    Args:
        env: The environment.
        level: From 0 to 1. Shape (num_envs,).
        reward: Name of the tracking reward.
        full: That reward per second when tracking is perfect: its weight.
        share: Part of it above which the level rises.
        step: How much it rises; after an episode below half of share it falls by half as much.

    Returns:
        Shape (num_envs,).
    """
    seconds = env.statistics.episode_steps().clamp_min(1) * env.step_dt
    earned = env.statistics.episode_return(reward) / (full * seconds)
    return level + step * (earned > share) - step / 2 * (earned < share / 2)


def terrain_level(env: "Env", level: torch.Tensor, *, joint: str, command: str, far_m: float) -> torch.Tensor:
    """Curriculum: up a level for who left its patch, down for who did not walk half of what was asked.

    Args:
        env: The environment; its ground must be generated.
        level: Shape (num_envs,).
        joint: Name of the free joint.
        command: Name of the velocity command.
        far_m: Distance from the start that counts as having left, in m.

    Returns:
        Shape (num_envs,).
    """
    start = env.engine.layout.qpos[joint].start
    columns = slice(start, start + 2)
    walked_m = (env.state.qpos[:, columns] - env.start_qpos[:, columns]).norm(dim=1)
    seconds = env.statistics.episode_steps() * env.step_dt
    asked_m = env.command(command)[:, :2].norm(dim=1) * seconds
    up = walked_m > far_m
    return level + up.to(level.dtype) - (~up & (walked_m < asked_m / 2)).to(level.dtype)
