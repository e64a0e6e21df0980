"""Signals that arrive late."""

from collections.abc import Mapping

import torch

from mjtrain.env.core import EnvCore


class DelayLine:
    """Delays a signal by a number of env steps, drawn for each world and episode."""

    def __init__(
        self,
        delay: tuple[int, int],
        shape: tuple[int, ...],
        core: EnvCore,
        *,
        history: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Make room.

        Args:
            shape: Shape of the signal of one world: its columns, or the channels, height and width of an image.
            history: How many values are read at once.
        """
        self._core = core
        self._low, self._high = delay
        self.ring = torch.zeros(core.num_envs, delay[1] + history, *shape, device=core.device, dtype=dtype)
        """Values of the last env steps, oldest first. Shape (num_envs, high + history, *shape)."""
        self.lag = torch.zeros(core.num_envs, dtype=torch.long, device=core.device)
        """Delay of the running episode, in env steps. Shape (num_envs,)."""
        self._window = torch.arange(history, device=core.device) + delay[1]
        self._worlds = torch.arange(core.num_envs, device=core.device)[:, None]

    def push(self, value: torch.Tensor, advance: bool = True) -> torch.Tensor:
        """Store the newest value and return what arrives now.

        Args:
            value: Shape (num_envs, *shape).
            advance: Whether an env step has passed; if not, nothing is stored.

        Returns:
            Along the first axis of the signal, oldest first: shape (num_envs, history * size), or (num_envs, history *
            channels, height, width).
        """
        if advance:
            self.ring.copy_(torch.cat([self.ring[:, 1:], value[:, None]], dim=1))
        return self.ring[self._worlds, self._window - self.lag[:, None]].flatten(1, 2)

    def begin(self, mask: torch.Tensor, value: torch.Tensor) -> None:
        """Begin episodes in the masked worlds: fill their past with a value, as `push` takes it, and draw a delay."""
        worlds = mask.view(-1, *[1] * (self.ring.ndim - 1))
        self.ring.copy_(torch.where(worlds, value[:, None], self.ring))
        if self._high > self._low:
            drawn = torch.randint(
                self._low, self._high + 1, mask.shape, generator=self._core.rng, device=self._core.device
            )
        else:
            drawn = torch.full_like(self.lag, self._low)
        self.lag.copy_(torch.where(mask, drawn, self.lag))


def line_buffers(lines: Mapping[str, DelayLine]) -> dict[str, torch.Tensor]:
    """Return the tensors of delay lines that persist from step to step."""
    return {
        f"{name}.{key}": tensor
        for name, line in lines.items()
        for key, tensor in (("ring", line.ring), ("lag", line.lag))
    }
