"""From the policy's output to the actuators."""

import re

import torch

from mjtrain.config import ActionTerm
from mjtrain.engines.layout import Layout
from mjtrain.errors import RequestError


class Actions:
    """Evaluates the action terms and remembers the last two actions."""

    def __init__(self, terms: dict[str, ActionTerm], layout: Layout, num_envs: int, device: torch.device) -> None:
        """Find the actuators of each term.

        Raises:
            RequestError: A pattern matches no actuator, or two terms claim the same one.
        """
        columns: list[int] = []
        rows: list[tuple[float, float, float, float]] = []
        for name, term in terms.items():
            matched = _match(name, term, layout)
            columns += matched
            rows += [(term.scale, term.offset, *term.clip)] * len(matched)
        if len(set(columns)) < len(columns):
            raise RequestError("--env.actions: two terms drive the same actuator; give each actuator to one term")
        self.size = len(columns)
        self.current = torch.zeros(num_envs, self.size, device=device)
        self.previous = torch.zeros_like(self.current)
        self._columns = torch.tensor(columns, dtype=torch.long, device=device)
        self._scale, self._offset, self._low, self._high = torch.tensor(rows, device=device).T.contiguous()
        self._ctrl = torch.zeros(num_envs, len(layout.actuators), device=device)

    def apply(self, action: torch.Tensor) -> torch.Tensor:
        """Turn an action into controls.

        Args:
            action: Shape (num_envs, size).

        Returns:
            Controls of all actuators; those without a term stay zero. Shape (num_envs, nu).
        """
        self.previous.copy_(self.current)
        self.current.copy_(action)
        values = self._offset + self._scale * torch.clamp(self.current, self._low, self._high)
        return self._ctrl.index_copy_(1, self._columns, values)

    def reset(self, mask: torch.Tensor) -> None:
        """Forget the actions of the masked worlds."""
        self.current.masked_fill_(mask[:, None], 0.0)
        self.previous.masked_fill_(mask[:, None], 0.0)


def _match(name: str, term: ActionTerm, layout: Layout) -> list[int]:
    matched: dict[int, None] = {}
    for pattern in term.actuators:
        hits = [column for actuator, column in layout.actuators.items() if re.fullmatch(pattern, actuator)]
        if not hits:
            raise RequestError(
                f"--env.actions.{name}.actuators {pattern!r}: matches no actuator; the robot has "
                f"{', '.join(layout.actuators) or 'none'}"
            )
        matched.update(dict.fromkeys(hits))
    return sorted(matched)
