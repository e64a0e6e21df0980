"""What terms remember from env step to env step, contact times among it."""

from typing import Any

import torch


class Memory:
    """Tensors by name, made when they are first asked for, zero at first, and part of a checkpoint."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._num_envs = num_envs
        self._device = device
        self._tensors: dict[str, torch.Tensor] = {}
        self._saved: dict[str, torch.Tensor] = {}
        self._kept: set[str] = set()

    def tensor(self, name: str, size: int, *, kept: bool = False) -> torch.Tensor:
        """Return a tensor of this name, to be changed in place. Shape (num_envs, size).

        Args:
            kept: Whether a new episode leaves it as it is. Otherwise it is zero where one begins.
        """
        if name not in self._tensors:
            with torch.inference_mode(mode=False):  # it must outlive the rollout in which it is asked for
                tensor = torch.zeros(self._num_envs, size, device=self._device)
            saved = self._saved.pop(name, None)
            if saved is not None and saved.shape == tensor.shape:
                tensor.copy_(saved)
            self._tensors[name] = tensor
            if kept:
                self._kept.add(name)
        return self._tensors[name]

    def reset(self, mask: torch.Tensor) -> None:
        """Forget the masked worlds, except what is kept. Boolean, shape (num_envs,)."""
        for name, tensor in self._tensors.items():
            if name not in self._kept:
                tensor.masked_fill_(mask[:, None], 0.0)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return copies of all tensors."""
        return {name: tensor.clone() for name, tensor in (self._saved | self._tensors).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state. A tensor that it lacks or has in another shape starts at zero.

        So does everything of a checkpoint from before there was a memory.
        """
        self._saved = dict(state)
        for name, tensor in self._tensors.items():
            saved = self._saved.pop(name, None)
            if saved is not None and saved.shape == tensor.shape:
                tensor.copy_(saved)
            else:
                tensor.zero_()


class ContactTimes:
    """Durations of contact and flight by sensor, since the episode began. Shape (num_envs, num_sensors) each."""

    def __init__(self, name: str, size: int, step_dt: float, memory: Memory) -> None:
        self._step_dt = step_dt
        self.contact_s: torch.Tensor = memory.tensor(f"{name}.contact_s", size)
        """Time since contact began, in seconds; 0 without contact."""
        self.air_s: torch.Tensor = memory.tensor(f"{name}.air_s", size)
        """Time since contact ended, in seconds; 0 in contact."""
        self.last_air_s: torch.Tensor = memory.tensor(f"{name}.last_air_s", size)
        """Duration of the last flight, in seconds; 0 before the first one has ended."""

    def update(self, touches: torch.Tensor) -> None:
        """Advance by an env step. Boolean, shape (num_envs, num_sensors)."""
        lands = touches & (self.air_s > 0)
        self.last_air_s.copy_(torch.where(lands, self.air_s, self.last_air_s))
        self.air_s.copy_((self.air_s + self._step_dt).masked_fill(touches, 0.0))
        self.contact_s.copy_((self.contact_s + self._step_dt).masked_fill(~touches, 0.0))

    @property
    def landed(self) -> torch.Tensor:
        """Where a flight ended with this env step. Boolean."""
        return (self.contact_s > 0) & (self.contact_s < 1.5 * self._step_dt) & (self.last_air_s > 0)
