"""skrl's PPO, so that N ranks optimise what one rank with N times the environments would."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from skrl import config
from skrl.agents.torch.ppo import PPO, ppo
from skrl.resources.schedulers.torch import KLAdaptiveLR

from mjtrain.learning import Collectives, normalise


class NotedKlAdaptiveLr(KLAdaptiveLR):
    """skrl's adaptive learning rate, which remembers the divergences that it was told."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take everything that skrl's takes."""
        self.divergences: list[float] = []
        super().__init__(*args, **kwargs)

    def step(self, kl: Any = None, **kwargs: Any) -> None:
        """Adapt the learning rate; skrl gives the divergence of an epoch, averaged over ranks."""
        if kl is not None:
            self.divergences.append(float(kl))
        super().step(kl, **kwargs)


class JobPpo(PPO):
    """PPO whose advantages are normalised over all ranks' samples; skrl does so per rank.

    Gradients and the divergence that adapts the learning rate are averaged by skrl's own code. With one rank all of it
    is skrl's.
    """

    def __init__(self, collectives: Collectives, **kwargs: Any) -> None:
        """Take everything that skrl's takes, and what adds up over ranks."""
        super().__init__(**kwargs)
        self._collectives = collectives

    def update(self, *, timestep: int, timesteps: int) -> None:
        """Learn from a rollout; see skrl."""
        if not config.torch.is_distributed:
            super().update(timestep=timestep, timesteps=timesteps)
            return
        with self._advantages_of_all_ranks():
            super().update(timestep=timestep, timesteps=timesteps)

    @contextmanager
    def _advantages_of_all_ranks(self) -> Iterator[None]:
        """Replace the function by whose name skrl's update finds returns and advantages."""
        compute = ppo.compute_gae

        def compute_over_ranks(*, values: torch.Tensor, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
            returns, _ = compute(values=values, **kwargs)  # pyright: ignore[reportGeneralTypeIssues]
            return returns, normalise(returns - values, self._collectives)

        ppo.compute_gae = compute_over_ranks  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            ppo.compute_gae = compute
