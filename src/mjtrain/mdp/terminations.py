"""Conditions that end an episode, for termination terms.

A parameter `success` is the name of a success term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mjtrain.config.limits import ANGLE, AT_LEAST_1, UP, AtLeast0, Positive
from mjtrain.mdp.root import outside
from mjtrain.runtime.deferred_imports import torch
from mjtrain.runtime.errors import RequestError

if TYPE_CHECKING:
    from mjtrain.env.env import Env


def time_out(env: Env) -> torch.Tensor:
    """The episode has lasted episode_length_s; use `truncation`. Boolean, shape (num_envs,)."""
    return env.episode_step >= env.max_episode_steps


def is_successful(env: Env, *, success: str, times: Annotated[int, AT_LEAST_1] = 1) -> torch.Tensor:
    """A success term has been true often enough; use `truncation`.

    Terminations come before successes, so that the episode ends in the env step after. Boolean, shape (num_envs,).

    Args:
        times: In how many env steps of the episode it must have been true.
    """
    return env.success_count(success) >= times


def success_time_out(env: Env, *, success: str, after_s: Positive) -> torch.Tensor:
    """A success term has not been true for some time of the episode; use `truncation`.

    With a success term of measure count it is the time that each goal may take. Boolean, shape (num_envs,).

    Args:
        after_s: The time, in s.
    """
    with_this_step = env.time_since_success(success) + env.step_dt
    return with_this_step > after_s - 0.5 * env.step_dt  # half a step, for rounding


def joint_out_of_range(
    env: Env, *, joint: str, limit: float | None = None, low: float | None = None, high: float | None = None
) -> torch.Tensor:
    """A slide or hinge is out of a range: give a limit for both sides, or else one or both bounds.

    Boolean, shape (num_envs,).

    Args:
        limit: Greatest distance from its zero, in m or rad.
        low: Least position, in m or rad.
        high: Greatest position, in m or rad.
    """
    env.engine.layout.qpos.check_scalar(joint)
    position = env.qpos(joint)[:, 0]
    if limit is None:
        return outside(position, low, high)
    if low is not None or high is not None:
        raise RequestError("limit is for both sides: give it alone, or else low, high or both")
    return position.abs() > limit


def joint_pos_out_of_limit(env: Env, *, joints: tuple[str, ...]) -> torch.Tensor:
    """A slide or hinge is beyond its range in the MJCF file, which MuJoCo enforces softly. Boolean, shape (num_envs,).

    Args:
        joints: Regular expressions over slides and hinges that have a range.
    """
    low, high = env.engine.layout.joint_limits(joints)
    position = env.qpos(joints)
    return ((position < low) | (position > high)).any(dim=1)


def bad_orientation(env: Env, *, sensor: Annotated[str, UP], limit: Annotated[float, ANGLE]) -> torch.Tensor:
    """A body is tilted by more than a limit. Boolean, shape (num_envs,).

    Args:
        sensor: A framezaxis sensor: the world's z axis in the frame of the body, or the reverse.
        limit: Angle between the two, in rad.
    """
    return env.sensor(sensor)[:, 2].clamp(-1.0, 1.0).arccos() > limit


def illegal_contact(
    env: Env, *, sensors: tuple[str, ...], threshold: AtLeast0 = 0.0, in_any_substep: bool = False
) -> torch.Tensor:
    """A touch or contact sensor feels a contact, see `Env.touches`. Boolean, shape (num_envs,).

    Args:
        threshold: Force in N above which it counts.
        in_any_substep: Whether a contact in any physics step of the env step counts, and not only in the last.
    """
    return env.touches(sensors, threshold, in_any_substep=in_any_substep).any(dim=1)


def terrain_out_of_bounds(env: Env, *, joint: str, margin_m: AtLeast0) -> torch.Tensor:
    """A free body is near the edge of the generated ground; use `truncation`. Boolean, shape (num_envs,).

    Args:
        joint: Name of the free joint.
        margin_m: Distance from the edge that counts as near, in m.
    """
    env.engine.layout.qpos.check_free(joint)
    return env.ground.outside(env.qpos(joint)[:, :2], margin_m)


def root_height_below_minimum(env: Env, *, joint: str, height_m: float) -> torch.Tensor:
    """A free body is too close to the ground. Boolean, shape (num_envs,).

    Args:
        joint: Name of the free joint.
        height_m: Least height above the ground, in m.
    """
    env.engine.layout.qpos.check_free(joint)
    pose = env.qpos(joint)
    return pose[:, 2] - env.ground.height(pose[:, :2]) < height_m
