"""Quantities that many tasks reward or penalise, for reward terms.

A parameter `success` is the name of a success term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from mjtrain.config.limits import EFFORT, AtLeast0, Fraction
from mjtrain.mdp.root import outside
from mjtrain.runtime.deferred_imports import torch

if TYPE_CHECKING:
    from mjtrain.env.env import Env


def is_alive(env: Env) -> torch.Tensor:
    """One, always. Shape (num_envs,)."""
    return torch.ones(env.num_envs, device=env.device)


def is_terminated(env: Env) -> torch.Tensor:
    """One in the step in which a termination term that does not truncate ends the episode. Shape (num_envs,)."""
    return env.terminated.float()


def is_successful(env: Env, *, success: str) -> torch.Tensor:
    """One in each env step in which a success term is true, else zero. Shape (num_envs,)."""
    return env.success(success).float()


def action_rate(env: Env) -> torch.Tensor:
    """Squared change of the action since the step before, summed over actions. Shape (num_envs,)."""
    return (env.action - env.last_action).square().sum(dim=1)


def action_acc(env: Env) -> torch.Tensor:
    """Squared second difference of the action over the last three steps, summed over actions. Shape (num_envs,)."""
    return (env.action - 2 * env.last_action + env.action_before_last).square().sum(dim=1)


def action_energy(env: Env) -> torch.Tensor:
    """Squared action, summed over actions. Shape (num_envs,)."""
    return env.action.square().sum(dim=1)


def joint_speed(env: Env, *, joints: tuple[str, ...]) -> torch.Tensor:
    """Squared velocity, summed over joints, in (m/s)^2 or (rad/s)^2. Shape (num_envs,)."""
    return env.qvel(joints).square().sum(dim=1)


def sensors_squared(env: Env, *, sensors: tuple[str, ...]) -> torch.Tensor:
    """Squared readings, for example torques, summed over sensors. Shape (num_envs,)."""
    return env.sensor(sensors).square().sum(dim=1)


def joint_deviation(env: Env, *, joints: tuple[str, ...]) -> torch.Tensor:
    """Squared distance from the default pose, summed over joints, in m^2 or rad^2. Shape (num_envs,)."""
    columns = env.engine.layout.qpos.select(joints)
    return (env.state.qpos[:, columns] - env.engine.layout.default_qpos[columns]).square().sum(dim=1)


def joint_in_range(env: Env, *, joint: str, low: float | None = None, high: float | None = None) -> torch.Tensor:
    """One where the position of a slide or hinge is within a range, else zero. Shape (num_envs,).

    Args:
        low: Least position, in m or rad; None for no bound.
        high: Greatest position, in m or rad; None for no bound.
    """
    env.engine.layout.qpos.check_scalar(joint)
    return (~outside(env.qpos(joint)[:, 0], low, high)).float()


def joint_pos_limits(env: Env, *, joints: tuple[str, ...], soft: Fraction = 0.9) -> torch.Tensor:
    """How far joints are beyond the soft limits of their ranges in the MJCF file, summed over joints, in m or rad.

    Shape (num_envs,).

    Args:
        joints: Regular expressions over slides and hinges that have a range.
        soft: Fraction of each range, around its middle, within which nothing is counted.
    """
    low, high = env.engine.layout.joint_limits(joints)
    from_middle = (env.qpos(joints) - (low + high) / 2).abs()
    return (from_middle - soft * (high - low) / 2).clamp_min(0.0).sum(dim=1)


def joint_vel_limits(env: Env, *, joints: tuple[str, ...], limit: AtLeast0) -> torch.Tensor:
    """How much faster than a limit joints are, summed over joints, in m/s or rad/s. Shape (num_envs,).

    Args:
        limit: Speed up to which nothing is counted, in m/s or rad/s.
    """
    return (env.qvel(joints).abs() - limit).clamp_min(0.0).sum(dim=1)


def joint_torques_squared(env: Env, *, joints: tuple[str, ...]) -> torch.Tensor:
    """Squared forces and torques of the actuators, summed over joints, in N^2 or (N m)^2. Shape (num_envs,).

    It needs no sensors.
    """
    return env.qfrc_actuator(joints).square().sum(dim=1)


def joint_accelerations_squared(env: Env, *, joints: tuple[str, ...]) -> torch.Tensor:
    """Squared accelerations, summed over joints, in (m/s^2)^2 or (rad/s^2)^2. Shape (num_envs,)."""
    return env.qacc(joints).square().sum(dim=1)


def mechanical_power(
    env: Env, *, joints: tuple[str, ...], torque_sensors: Annotated[tuple[str, ...], EFFORT] = ()
) -> torch.Tensor:
    """Power of the actuators, |force x velocity| summed over joints, in W; its sum over time is the energy in J.

    Shape (num_envs,).

    Args:
        torque_sensors: Their jointactuatorfrc sensors (or actuatorfrc, with a gear of 1), in any order, in N or N m.
            Without any, the actuators' own forces on the joints are taken.

    Raises:
        RequestError: The sensors are not one for each joint.
    """
    if not torque_sensors:
        return (env.qfrc_actuator(joints) * env.qvel(joints)).abs().sum(dim=1)
    layout = env.engine.layout
    paired = layout.joints_of_sensors(torque_sensors, joints)
    return (env.sensor(torque_sensors) * env.state.qvel[:, paired]).abs().sum(dim=1)


def undesired_contacts(env: Env, *, sensors: tuple[str, ...], in_any_substep: bool = False) -> torch.Tensor:
    """Number of touch or contact sensors that feel a contact. Shape (num_envs,).

    Args:
        in_any_substep: Whether a contact in any physics step of the env step counts, and not only in the last.
    """
    return env.touches(sensors, 0.0, in_any_substep=in_any_substep).float().sum(dim=1)
