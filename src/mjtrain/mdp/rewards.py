"""What is rewarded in any task; for `reward` terms."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from mjtrain.env.env import Env


def alive(env: "Env") -> torch.Tensor:
    """One, always. Shape (num_envs,)."""
    return torch.ones(env.num_envs, device=env.device)


def failed(env: "Env") -> torch.Tensor:
    """One in the step that ends an episode by a termination term that does not truncate. Shape (num_envs,)."""
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
    """Squared readings, summed over sensors: torques, say. Shape (num_envs,)."""
    return env.sensor(sensors).square().sum(dim=1)


def joint_deviation(env: "Env", *, joints: tuple[str, ...]) -> torch.Tensor:
    """Squared distance from the robot's home, summed over joints, in rad^2. Shape (num_envs,)."""
    columns = env.engine.layout.qpos.select(joints)
    return (env.state.qpos[:, columns] - env.engine.layout.default_qpos[columns]).square().sum(dim=1)


def contacts(env: "Env", *, sensors: tuple[str, ...]) -> torch.Tensor:
    """How many of the touch or contact sensors read more than zero. Shape (num_envs,)."""
    return (env.sensor(sensors) > 0).float().sum(dim=1)
