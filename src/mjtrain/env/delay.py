"""Signals that arrive late."""

from typing import TYPE_CHECKING

import torch

from mjtrain.errors import RequestError

if TYPE_CHECKING:
    from mjtrain.env.env import Env


class DelayLine:
    """Remembers the last values of a signal; each world reads them so many env steps late, drawn per episode."""

    def __init__(self, delay: tuple[int, int], size: int, env: "Env", *, history: int = 1) -> None:
        """Make room.

        Args:
            delay: Least and most env steps.
            size: Columns of the signal.
            env: The environment.
            history: How many values are read at once.
        """
        self._low, self._high = delay
        self.history = history
        """How many values are read at once."""
        self.ring = torch.zeros(env.num_envs, delay[1] + history, size, device=env.device)
        """Values of the last env steps, oldest first. Shape (num_envs, high + history, size)."""
        self.lag = torch.zeros(env.num_envs, dtype=torch.long, device=env.device)
        """Delay of the running episode, in env steps. Shape (num_envs,)."""
        self._window = torch.arange(history, device=env.device) + delay[1]

    def push(self, value: torch.Tensor, advance: bool = True) -> torch.Tensor:
        """Take in the newest value and return what arrives now.

        Args:
            value: Shape (num_envs, size).
            advance: Whether time has gone on; if not, nothing is taken in.

        Returns:
            Shape (num_envs, history * size), oldest first.
        """
        if advance:
            self.ring.copy_(torch.cat([self.ring[:, 1:], value[:, None]], dim=1))
        index = (self._window - self.lag[:, None])[:, :, None].expand(-1, -1, self.ring.shape[2])
        return self.ring.gather(1, index).flatten(1)

    def begin(self, mask: torch.Tensor, value: torch.Tensor, env: "Env") -> None:
        """Begin new episodes: the masked worlds have always had this value, and draw a new delay.

        Args:
            mask: Boolean, shape (num_envs,).
            value: Shape (num_envs, size).
            env: The environment.
        """
        self.ring.copy_(torch.where(mask[:, None, None], value[:, None], self.ring))
        if self._high > self._low:
            drawn = torch.randint(self._low, self._high + 1, mask.shape, generator=env.rng, device=env.device)
        else:
            drawn = torch.full_like(self.lag, self._low)
        self.lag.copy_(torch.where(mask, drawn, self.lag))


def check_delay(flag: str, delay: tuple[int, int]) -> None:
    """Raise a RequestError unless 0 <= delay[0] <= delay[1]."""
    if not 0 <= delay[0] <= delay[1]:
        raise RequestError(f"{flag} {delay[0]} {delay[1]}: give the least and the most env steps, such as 0 2")
