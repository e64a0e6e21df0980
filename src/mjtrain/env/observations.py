"""What the policy sees: groups of named terms."""

from typing import TYPE_CHECKING

import torch

from mjtrain.config import ObservationTerm

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class Observations:
    """Evaluates the observation groups."""

    def __init__(self, groups: dict[str, dict[str, ObservationTerm]]) -> None:
        self._groups = groups

    def compute(self, env: "Env") -> dict[str, torch.Tensor]:
        """Return one tensor per group, its terms side by side in order. Shape (num_envs, size) each."""
        return {
            name: torch.cat([_evaluate(term, env) for term in terms.values()], dim=1)
            for name, terms in self._groups.items()
        }


def _evaluate(term: ObservationTerm, env: "Env") -> torch.Tensor:
    value = term.func(env, **term.params)
    if term.scale != 1.0:
        value = value * term.scale
    return value if term.clip is None else value.clamp(*term.clip)


def joint_pos(env: "Env", *, joint: str) -> torch.Tensor:
    """Position of a joint, in m or rad. Shape (num_envs, 1) for slides and hinges."""
    return env.qpos(joint)


def joint_vel(env: "Env", *, joint: str) -> torch.Tensor:
    """Velocity of a joint, in m/s or rad/s. Shape (num_envs, 1) for slides and hinges."""
    return env.qvel(joint)


def joint_cos_sin(env: "Env", *, joint: str) -> torch.Tensor:
    """Cosine and sine of a hinge's angle, which do not jump where the angle wraps. Shape (num_envs, 2)."""
    angle = env.qpos(joint)
    return torch.cat([angle.cos(), angle.sin()], dim=1)


def last_action(env: "Env") -> torch.Tensor:
    """The policy's output of the step that led here, zero at the start. Shape (num_envs, num_actions)."""
    return env.action
