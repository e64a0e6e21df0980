"""What happens to worlds from outside the policy."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mjtrain.config import EventTerm

if TYPE_CHECKING:
    from mjtrain.env.env import Env


@dataclass(frozen=True, kw_only=True)
class StartState:
    """Where the next episodes begin; event terms change it in place."""

    qpos: torch.Tensor
    """Shape (num_envs, nq)."""

    qvel: torch.Tensor
    """Shape (num_envs, nv)."""


class Events:
    """Evaluates the event terms."""

    def __init__(self, terms: dict[str, EventTerm]) -> None:
        self._terms = [(term.func, term.params) for term in terms.values()]

    def sample_start(self, env: "Env") -> tuple[torch.Tensor, torch.Tensor]:
        """Draw a start for every world, from the robot's default pose and the reset events.

        Returns:
            qpos, shape (num_envs, nq), and qvel, shape (num_envs, nv).
        """
        layout = env.engine.layout
        start = StartState(
            qpos=layout.default_qpos.repeat(env.num_envs, 1), qvel=layout.default_qvel.repeat(env.num_envs, 1)
        )
        for func, params in self._terms:
            func(env, start, **params)
        return start.qpos, start.qvel


def add_uniform_joint_offset(
    env: "Env",
    start: StartState,
    *,
    joint: str,
    position: tuple[float, float],
    velocity: tuple[float, float] = (0.0, 0.0),
) -> None:
    """Move a slide or hinge away from its default by a uniformly random amount.

    Args:
        env: The environment.
        start: What is changed.
        joint: Name of the joint.
        position: Bounds of the offset, in m or rad.
        velocity: Bounds of the velocity's offset, in m/s or rad/s.
    """
    layout = env.engine.layout
    noise = torch.rand(env.num_envs, 2, generator=env.rng, device=env.device)
    start.qpos[:, layout.qpos[joint]] += position[0] + (position[1] - position[0]) * noise[:, :1]
    start.qvel[:, layout.qvel[joint]] += velocity[0] + (velocity[1] - velocity[0]) * noise[:, 1:]
