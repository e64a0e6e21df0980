"""For how long feet have stood or swung."""

import torch

from mjtrain.env.memory import Memory


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
