"""The root of a robot: how it moves, leans and how high it is, from its joints and without a sensor in the MJCF file.

A floating base has a free joint. A planar root, as in Gymnasium's hopper or dm_control's cheetah, has two slides (along
the world's x and z) and a hinge about y: its angle is zero where the robot is upright, and positive where it leans
forward. Functions with one parameter `joint` take the free joint, or that joint of the planar root that matters: the
hinge, where nothing else is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from mjtrain.config.limits import ANGLE, NONZERO
from mjtrain.mdp import mirrors
from mjtrain.runtime.deferred_imports import torch
from mjtrain.runtime.errors import RequestError
from mjtrain.sim import rotations

if TYPE_CHECKING:
    from mjtrain.env.env import Env

_FREE = 6
"""Columns of a free joint in qvel."""


@mirrors.mirrored(mirrors.polar_vector)
def base_lin_vel(env: Env, *, joint: str) -> torch.Tensor:
    """Linear velocity of a free body in its own frame, in m/s, as a velocimeter at its origin reads it.

    Ahead, left, up. Shape (num_envs, 3).

    Args:
        joint: Name of the free joint.
    """
    if _kind(env, joint) != "free joint":
        raise RequestError(f"joint {joint} is not a free joint; for a planar root there is planar_lin_vel")
    return rotations.rotate_inverse(env.qpos(joint)[:, 3:], env.qvel(joint)[:, :3])


@mirrors.mirrored(mirrors.axial_vector)
def base_ang_vel(env: Env, *, joint: str) -> torch.Tensor:
    """Angular velocity of the base, in rad/s, as a gyro reads it.

    About x, y and z of the base. Shape (num_envs, 3), or (num_envs, 1) for a hinge.
    """
    return env.qvel(joint)[:, 3:] if _is_free(env, joint, "hinge") else env.qvel(joint)


@mirrors.mirrored(mirrors.polar_vector)
def projected_gravity(env: Env, *, joint: str) -> torch.Tensor:
    """Direction of gravity in the frame of the base: a unit vector, (0, 0, -1) where the base is upright.

    Shape (num_envs, 3); along x and z of the base, shape (num_envs, 2), for a hinge.
    """
    if not _is_free(env, joint, "hinge"):
        angle = env.qpos(joint)
        return torch.cat([angle.sin(), -angle.cos()], dim=1)
    w, x, y, z = env.qpos(joint)[:, 3:].unbind(dim=1)
    return torch.stack([2 * (w * y - x * z), -2 * (y * z + w * x), 2 * (x * x + y * y) - 1], dim=1)


def planar_lin_vel(env: Env, *, x_joint: str, z_joint: str, pitch_joint: str) -> torch.Tensor:
    """Linear velocity of a planar root in its own frame, in m/s: ahead, up. Shape (num_envs, 2).

    Args:
        x_joint: Name of the slide along the world's x.
        z_joint: Name of the slide along the world's z.
        pitch_joint: Name of the hinge about y.
    """
    for joint, kind in ((x_joint, "slide"), (z_joint, "slide"), (pitch_joint, "hinge")):
        if _kind(env, joint) != kind and not env.is_recorded:
            raise RequestError(f"joint {joint} is a {_kind(env, joint)}; give a {kind}")
    x, z, angle = env.qvel(x_joint), env.qvel(z_joint), env.qpos(pitch_joint)
    return torch.cat([x * angle.cos() - z * angle.sin(), x * angle.sin() + z * angle.cos()], dim=1)


@mirrors.mirrored(mirrors.unchanged)
def base_height(env: Env, *, joint: str) -> torch.Tensor:
    """Height of the base, in m. Shape (num_envs, 1).

    Args:
        joint: Name of the free joint, for the height of its body above the ground; or of the slide along z, for its
            position.
    """
    return _height(env, joint)[:, None]


def forward_velocity(env: Env, *, joint: str) -> torch.Tensor:
    """Velocity along the world's x, in m/s: the reward of Gymnasium's hopper, walker, cheetah and ant.

    Shape (num_envs,).

    Args:
        joint: Name of the free joint, or of the slide along x.
    """
    _is_free(env, joint, "slide")  # or else an error
    return env.qvel(joint)[:, 0]


def reach_forward_velocity(env: Env, *, joint: str, speed: Annotated[float, NONZERO]) -> torch.Tensor:
    """Velocity along the world's x as a fraction of a target, from 0 to 1, which it keeps above: dm_control's cheetah.

    Shape (num_envs,).

    Args:
        joint: Name of the free joint, or of the slide along x.
        speed: The target, in m/s.
    """
    return (forward_velocity(env, joint=joint) / speed).clamp(0.0, 1.0)


def upright(env: Env, *, joint: str) -> torch.Tensor:
    """Cosine of the tilt of the base: 1 upright, 0 on its side, -1 upside down. Shape (num_envs,)."""
    return -projected_gravity(env, joint=joint)[:, -1]


def flat_orientation(env: Env, *, joint: str) -> torch.Tensor:
    """Squared sine of the tilt of the base, as `velocity.flat_orientation` with a sensor. Shape (num_envs,)."""
    return projected_gravity(env, joint=joint)[:, :-1].square().sum(dim=1)


def height_in_range(env: Env, *, joint: str, low: float | None = None, high: float | None = None) -> torch.Tensor:
    """One where the height of the base is within a range, else zero. Shape (num_envs,).

    Args:
        joint: Name of the free joint, or of the slide along z.
        low: Least height, in m; None for no bound.
        high: Greatest height, in m; None for no bound.
    """
    return (~height_out_of_range(env, joint=joint, low=low, high=high)).float()


def height_out_of_range(env: Env, *, joint: str, low: float | None = None, high: float | None = None) -> torch.Tensor:
    """The height of the base is out of a range. Boolean, shape (num_envs,).

    Args:
        joint: Name of the free joint, or of the slide along z.
        low: Least height, in m; None for no bound.
        high: Greatest height, in m; None for no bound.
    """
    return outside(_height(env, joint), low, high)


def bad_orientation(env: Env, *, joint: str, limit: Annotated[float, ANGLE]) -> torch.Tensor:
    """The base is tilted by more than a limit, as `terminations.bad_orientation` with a sensor.

    Boolean, shape (num_envs,).

    Args:
        limit: Angle between the z of the base and the world's, in rad.
    """
    return upright(env, joint=joint).clamp(-1.0, 1.0).arccos() > limit


def outside(values: torch.Tensor, low: float | None, high: float | None) -> torch.Tensor:
    """Whether values are below low or above high, where these are not None. Boolean, of the shape of the values.

    Raises:
        RequestError: Both are None.
    """
    if low is not None and high is not None:
        return (values < low) | (values > high)
    if low is not None:
        return values < low
    if high is not None:
        return values > high
    raise RequestError("a range needs a bound: give low, high or both")


def _height(env: Env, joint: str) -> torch.Tensor:
    pose = env.qpos(joint)
    if not _is_free(env, joint, "slide"):
        return pose[:, 0]
    return pose[:, 2] - env.ground.height(pose[:, :2])


def _is_free(env: Env, joint: str, other: Literal["hinge", "slide"]) -> bool:
    """Tell a free joint from the one of a planar root that the function also takes."""
    kind = _kind(env, joint)
    if kind not in ("free joint", other) and not env.is_recorded:  # which once took a slide for a hinge
        raise RequestError(f"joint {joint} is a {kind}; give a free joint or a {other}")
    return kind == "free joint"


def _kind(env: Env, joint: str) -> str:
    layout = env.engine.layout
    if (width := layout.qvel.width(joint)) > 1:
        return "free joint" if width == _FREE else "ball joint"
    return "slide" if layout.velocities[layout.qvel[joint].start][1] == "m/s" else "hinge"
