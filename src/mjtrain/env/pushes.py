"""External forces on bodies that last for some env steps."""

import re

import torch

from mjtrain.env.core import EnvCore
from mjtrain.sim.robots.layout import match_names


class Pushes:
    """Forces and torques by body, and how long they last. What it knows of the worlds is in the memory of terms."""

    def __init__(self, core: EnvCore) -> None:
        self._core = core
        self._by_body: dict[str, tuple[int, torch.Tensor]] = {}

    def begin(self, body: str, mask: torch.Tensor, wrench: torch.Tensor, duration_s: torch.Tensor) -> None:
        """Push a body of the masked worlds from this env step on, in place of what pushed it before.

        Args:
            body: Its name.
            mask: Which worlds. Boolean, shape (num_envs,).
            wrench: Force in N at its centre of mass, then torque in N m, in the world's frame. Shape (num_envs, 6).
            duration_s: In seconds, shape (num_envs,).
        """
        if body not in self._by_body:
            bodies = self._core.engine.layout.bodies
            row = bodies[match_names([re.escape(body)], bodies, "body")[0]]
            self._by_body[body] = (row, self._core.memory.tensor(f"push.{body}", 7))
        steps = (duration_s / self._core.step_dt).round().clamp(min=1.0)
        _, push = self._by_body[body]
        push.copy_(torch.where(mask[:, None], torch.cat([wrench, steps[:, None]], dim=1), push))

    def apply(self) -> None:
        """Give the engine the forces of this env step."""
        for row, push in self._by_body.values():
            left = push[:, 6:]
            self._core.engine.set_body_force(row, torch.where(left > 0, push[:, :6], 0.0))
            left.sub_(1.0).clamp_(min=0.0)
