"""skrl's normaliser over all ranks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from skrl.resources.preprocessors.jax import RunningStandardScaler

from mjtrain.learning import Collectives


class JobScaler(RunningStandardScaler):
    """skrl's running mean and variance, updated with the moments of all ranks' samples; skrl keeps one per rank."""

    def __init__(self, size: int, *, collectives: Collectives, summed_on: str, **options: Any) -> None:
        """Take what skrl's takes, what adds up over ranks, and the torch device on which that happens."""
        super().__init__(size, **options)
        self._collectives = collectives
        self._summed_on = summed_on

    def __call__(self, x: jax.Array | None, *, train: bool = False, inverse: bool = False) -> jax.Array | None:
        """Normalise, and with `train` take the samples in before; see skrl. Every rank must call it."""
        if train and x is not None:
            self._parallel_variance(*self._measure(x))
        return super().__call__(x, train=False, inverse=inverse)

    def _measure(self, x: jax.Array) -> tuple[jax.Array, jax.Array, int]:
        """Return the mean of all ranks' samples, their variance divided by one less than their number, and that."""
        center = np.asarray(self.running_mean, np.float64)  # all ranks share it, so that no digits are lost
        deviations = (np.asarray(x, np.float64) - center).reshape(-1, center.shape[0])
        mine = np.concatenate([deviations.sum(0), np.square(deviations).sum(0), [len(deviations)]])
        sums = self._collectives.sum(torch.from_numpy(mine).to(self._summed_on)).cpu().numpy()
        size, count = center.shape[0], int(sums[-1])
        mean = sums[:size] / count
        variance = np.maximum(sums[size:-1] - count * mean**2, 0.0) / (count - 1)
        return jnp.asarray(center + mean, jnp.float32), jnp.asarray(variance, jnp.float32), count
