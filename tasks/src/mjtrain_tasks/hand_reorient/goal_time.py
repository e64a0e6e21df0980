"""An episode ends when no goal is reached for too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mjtrain.mdp import torch

if TYPE_CHECKING:
    from mjtrain.mdp import Env


def begin(env: Env) -> torch.Tensor:
    """The time since the last goal at the beginning of an episode: none, for `time_since_goal` to go on from.

    Args:
        env: The environment.

    Returns:
        Seconds. Shape (num_envs, 1).
    """
    return torch.zeros(env.num_envs, 1, device=env.device)


def time_since_goal(env: Env, drawn: torch.Tensor, before: torch.Tensor | None, *, success: str) -> torch.Tensor:
    """How long ago the last goal of the episode was reached, or else the episode began.

    Args:
        env: The environment.
        drawn: What `begin` drew. Shape (num_envs, 1).
        before: The time of the env step before, or None at the start. Shape (num_envs, 1).
        success: Name of the success term that says whether a goal is reached in this env step.

    Returns:
        Seconds. Shape (num_envs, 1).
    """
    if before is None:
        return drawn
    return torch.where(env.success(success)[:, None], drawn, before + env.step_dt)


def missed(env: Env, *, command: str, after_s: float) -> torch.Tensor:
    """Whether the last goal was reached too long ago.

    Args:
        env: The environment.
        command: Name of the command that holds what `time_since_goal` gives.
        after_s: How long a goal may take, in s.

    Returns:
        Shape (num_envs,).
    """
    return env.command(command)[:, 0] > after_s
