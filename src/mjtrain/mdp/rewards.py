"""Quantities that many tasks reward or penalise, for reward terms."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from mjtrain.env.env import Env


def is_alive(env: "Env") -> torch.Tensor:
    """One, always. Shape (num_envs,)."""
    return torch.ones(env.num_envs, device=env.device)


def is_terminated(env: "Env") -> torch.Tensor:
    """One in the step in which a termination term that does not truncate ends the episode. Shape (num_envs,)."""
    return env.terminated.float()


def action_rate(env: "Env") -> torch.Tensor:
    """Squared change of the action since the step before, summed over actions. Shape (num_envs,)."""
    return (env.action - env.last_action).square().sum(dim=1)


def action_energy(env: "Env") -> torch.Tensor:
    """Squared action, summed over actions. Shape (num_envs,)."""
    return env.action.square().sum(dim=1)


def joint_speed(env: "Env", *, joints: tuple[str, ...]) -> torch.Tensor:
    """Squared velocity, summed over joints, in (rad/s)^2. Shape (num_envs,)."""
    return env.qvel(joints).square().sum(dim=1)


def sensors_squared(env: "Env", *, sensors: tuple[str, ...]) -> torch.Tensor:
    """Squared readings, for example torques, summed over sensors. Shape (num_envs,)."""
    return env.sensor(sensors).square().sum(dim=1)


def joint_deviation(env: "Env", *, joints: tuple[str, ...]) -> torch.Tensor:
    """Squared distance from the default pose, summed over joints, in rad^2. Shape (num_envs,)."""
    columns = env.engine.layout.qpos.select(joints)
    return (env.state.qpos[:, columns] - env.engine.layout.default_qpos[columns]).square().sum(dim=1)


def undesired_contacts(env: "Env", *, sensors: tuple[str, ...]) -> torch.Tensor:
    """Number of touch or contact sensors that read more than zero. Shape (num_envs,)."""
    return (env.sensor(sensors) > 0).float().sum(dim=1)
