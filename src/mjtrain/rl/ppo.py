"""RSL-RL's PPO, which also says how far the policy moved."""

from typing import Any

import torch
from rsl_rl.algorithms import PPO


class Ppo(PPO):
    """PPO that remembers the KL divergence of its updates."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take everything that PPO takes."""
        super().__init__(*args, **kwargs)
        self._divergences: list[torch.Tensor] = []
        measure = self.actor.get_kl_divergence

        def measure_and_remember(*params: tuple[torch.Tensor, ...]) -> torch.Tensor:
            divergence = measure(*params)
            self._divergences.append(divergence.mean())
            return divergence

        self.actor.get_kl_divergence = measure_and_remember  # pyright: ignore[reportAttributeAccessIssue]

    def pop_kl(self) -> float | None:
        """Return this rank's mean KL divergence over the mini-batches since the last call, in nats.

        None with the fixed schedule, which does not measure it.
        """
        if not self._divergences:
            return None
        mean = torch.stack(self._divergences).mean().item()
        self._divergences.clear()
        return mean
