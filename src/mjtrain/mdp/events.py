"""Resets and pushes, for event terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mjtrain.config.limits import Angles, AtLeast0, Bounds, Fraction, Shares
from mjtrain.env.sampling import uniform
from mjtrain.mdp.targets import joint_command
from mjtrain.runtime.deferred_imports import torch
from mjtrain.runtime.errors import RequestError
from mjtrain.sim import rotations

if TYPE_CHECKING:
    from mjtrain.env.env import Env
    from mjtrain.env.events import Worlds


def reset_joints_by_offset(
    env: Env, worlds: Worlds, *, joint: str, position: Bounds, velocity: Bounds = (0.0, 0.0)
) -> None:
    """Offset the position and velocity of a slide or hinge from their defaults by uniformly random amounts.

    Args:
        position: Bounds of the position's offset, in m or rad.
        velocity: Bounds of the velocity's offset, in m/s or rad/s.
    """
    layout = env.engine.layout
    layout.qpos.check_scalar(joint)
    noise = torch.rand(env.num_envs, 2, generator=env.rng, device=env.device)
    worlds.qpos[:, layout.qpos[joint]] += position[0] + (position[1] - position[0]) * noise[:, :1]
    worlds.qvel[:, layout.qvel[joint]] += velocity[0] + (velocity[1] - velocity[0]) * noise[:, 1:]


def reset_joints_by_scale(env: Env, worlds: Worlds, *, joints: tuple[str, ...], factor: Bounds) -> None:
    """Multiply the default position of each joint by a uniformly random factor.

    Args:
        factor: Bounds of the factor, drawn for each joint.
    """
    columns = env.engine.layout.qpos.select(joints)
    positions = worlds.qpos[:, columns]
    worlds.qpos[:, columns] = positions * uniform(env, factor, positions.shape[1])


def reset_root_state_uniform(
    env: Env,
    worlds: Worlds,
    *,
    joint: str,
    xy: Bounds = (0.0, 0.0),
    z: Bounds = (0.0, 0.0),
    yaw: Angles = (-3.1416, 3.1416),
    linear_velocity: Bounds = (0.0, 0.0),
    angular_velocity: Bounds = (0.0, 0.0),
) -> None:
    """Offset the pose and velocity of a free body from their defaults by uniformly random amounts.

    Args:
        joint: Name of the free joint.
        xy: Bounds of the offset along x and along y, in m.
        z: Bounds of the offset along the world's z, in m.
        yaw: Bounds of the rotation about the world's z, in rad.
        linear_velocity: Bounds of each component, in m/s, in the world's frame.
        angular_velocity: Bounds of each component, in rad/s, in the body's frame.
    """
    layout = env.engine.layout
    layout.qpos.check_free(joint)
    pose, motion = layout.qpos[joint], layout.qvel[joint]
    worlds.qpos[:, pose.start : pose.start + 2] += uniform(env, xy, 2)
    worlds.qpos[:, pose.start + 2] += uniform(env, z)
    turn = rotations.from_yaw(uniform(env, yaw))
    quaternion = slice(pose.start + 3, pose.start + 7)
    worlds.qpos[:, quaternion] = rotations.multiply(turn, worlds.qpos[:, quaternion])
    worlds.qvel[:, motion.start : motion.start + 3] += uniform(env, linear_velocity, 3)
    worlds.qvel[:, motion.start + 3 : motion.start + 6] += uniform(env, angular_velocity, 3)


def reset_with_noise(
    env: Env,
    worlds: Worlds,
    *,
    position: AtLeast0,
    velocity: AtLeast0,
    position_distribution: Literal["uniform", "normal"] = "uniform",
    velocity_distribution: Literal["uniform", "normal"] = "uniform",
) -> None:
    """Add noise to the whole body, all positions and velocities, as Gymnasium's robots start.

    Quaternions of free and ball joints are normalised afterwards.

    Args:
        position: Scale of the noise of positions, in m or rad: its bound if uniform, its standard deviation if normal.
        velocity: Scale of the noise of velocities, in m/s or rad/s, likewise.
        position_distribution: uniform or normal.
        velocity_distribution: uniform or normal; normal in Gymnasium's ant and half-cheetah.
    """
    worlds.qpos.add_(_noise(env, position, position_distribution, worlds.qpos.shape[1]))
    worlds.qvel.add_(_noise(env, velocity, velocity_distribution, worlds.qvel.shape[1]))
    for columns in env.engine.layout.quaternions:
        quaternion = worlds.qpos[:, columns]
        worlds.qpos[:, columns] = quaternion / quaternion.norm(dim=1, keepdim=True)


def reset_joints_within_limits(env: Env, worlds: Worlds, *, joints: tuple[str, ...], fraction: Fraction = 1.0) -> None:
    """Draw the positions of slides and hinges uniformly from their ranges in the MJCF file, as dm_control's cheetah.

    Args:
        joints: Regular expressions over slides and hinges that have a range.
        fraction: How much of each range is used, around its middle, from 0 to 1.
    """
    drawn = joint_command(env, joints=joints, fraction=fraction)
    worlds.qpos[:, env.engine.layout.qpos.select(joints)] = drawn


def _noise(env: Env, scale: float, distribution: str, size: int) -> torch.Tensor:
    if distribution == "uniform":
        return uniform(env, (-scale, scale), size)
    if distribution == "normal":
        return scale * torch.randn(env.num_envs, size, generator=env.rng, device=env.device)
    raise RequestError(f"distribution {distribution}: choose uniform or normal")


def spawn_on_patch(env: Env, worlds: Worlds, *, joint: str, curriculum: str) -> None:
    """Move a free body to the terrain patch of its level. Worlds are spread evenly over the kinds of ground.

    Args:
        env: The environment; its ground must be generated.
        joint: Name of the free joint.
        curriculum: Name of the curriculum term that holds the level, which is rounded down.
    """
    env.engine.layout.qpos.check_free(joint)
    start = env.engine.layout.qpos[joint].start
    worlds.qpos[:, start : start + 3] += env.ground.spawn(env.level(curriculum))


def push_by_setting_velocity(
    env: Env, worlds: Worlds, *, joint: str, linear: AtLeast0, angular: AtLeast0, vertical: AtLeast0 = 0.0
) -> None:
    """Push a free body by changing its velocity at once; for mode interval.

    Args:
        joint: Name of the free joint.
        linear: Largest change of the velocity along x and along y, in m/s.
        angular: Largest change of the angular velocity about each axis of the body, in rad/s: roll, pitch and yaw.
        vertical: Largest change of the velocity along the world's z, in m/s.
    """
    env.engine.layout.qpos.check_free(joint)
    motion = env.engine.layout.qvel[joint]
    worlds.qvel[:, motion.start : motion.start + 2] += uniform(env, (-linear, linear), 2)
    worlds.qvel[:, motion.start + 3 : motion.start + 6] += uniform(env, (-angular, angular), 3)
    if vertical:  # without, what other terms draw must not change
        worlds.qvel[:, motion.start + 2] += uniform(env, (-vertical, vertical))


def apply_body_impulse(
    env: Env,
    worlds: Worlds,
    *,
    body: str,
    force_n: Shares,
    duration_s: Shares,
    torque_nm: AtLeast0 = 0.0,
    horizontal: bool = True,
) -> None:
    """Push a body by a constant force at its centre of mass for some time; for mode interval.

    The next push of the same body ends this one, and so does the end of the episode.

    Args:
        force_n: Bounds of the force, in N. Its direction in the world's frame is random.
        duration_s: Bounds of the duration, in s, rounded to env steps, at least one.
        torque_nm: Largest torque about each axis of the world during the same time, in N m.
        horizontal: Whether the force has no vertical part.
    """
    direction = torch.randn(env.num_envs, 3, generator=env.rng, device=env.device)
    if horizontal:
        direction[:, 2] = 0.0
    force = uniform(env, force_n, 1) * direction / direction.norm(dim=1, keepdim=True)
    wrench = torch.cat([force, uniform(env, (-torque_nm, torque_nm), 3)], dim=1)
    env.push(body, worlds.mask, wrench, uniform(env, duration_s))
