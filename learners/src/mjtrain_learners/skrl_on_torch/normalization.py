"""skrl's normaliser over all ranks."""

from typing import Any

import torch
from skrl.resources.preprocessors.torch import RunningStandardScaler

from mjtrain.learning import Collectives


class JobScaler(RunningStandardScaler):
    """skrl's running mean and variance, updated with the moments of all ranks' samples; skrl keeps one per rank."""

    def __init__(self, size: int, *, collectives: Collectives, **options: Any) -> None:
        """Take what skrl's takes, and what adds up over ranks."""
        super().__init__(size, **options)
        self._collectives = collectives

    def _parallel_variance(self, input_mean: torch.Tensor, input_var: torch.Tensor, input_count: int) -> None:
        """Take in this rank's samples; every rank must call it.

        Args:
            input_mean: Mean of the samples. Shape (size,).
            input_var: Variance of the samples, divided by one less than their number. Shape (size,).
            input_count: Number of samples.
        """
        deviation = input_mean.double() - self.running_mean  # from what all ranks share, so that no digits are lost
        squares = input_var.double() * (input_count - 1) + deviation.square() * input_count
        sums = torch.cat([deviation * input_count, squares, deviation.new_tensor([float(input_count)])])
        self._collectives.sum(sums)
        size, count = deviation.shape[0], int(sums[-1])
        mean = sums[:size] / count
        variance = (sums[size:-1] - count * mean.square()).clamp(min=0.0) / (count - 1)
        super()._parallel_variance(self.running_mean + mean, variance, count)
