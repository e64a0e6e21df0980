"""Means and variances over the samples of all ranks, each with one collective in double precision."""

import torch

from mjtrain.learning.collectives import Collectives


@torch.no_grad()
def update_moments(
    mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor, samples: torch.Tensor, collectives: Collectives
) -> None:
    """Take the samples of all ranks into a running mean and variance, in place; every rank must call it.

    Args:
        mean: Of the samples so far, the same on all ranks. Shape (size,).
        variance: Likewise, of the whole population: divided by the count.
        count: How many samples that were; a scalar.
        samples: This rank's new ones. Shape (num_samples, size).
        collectives: Adds them up.
    """
    deviations = (samples - mean).double()
    sums = torch.cat([deviations.sum(0), deviations.square().sum(0), deviations.new_tensor([float(samples.shape[0])])])
    collectives.sum(sums)
    size = mean.shape[0]
    new = sums[-1]
    shift, spread = sums[:size] / new, sums[size:-1] / new
    count += new.to(count.dtype)
    rate = new / count
    # With d the mean of the deviations: mean += rate d, var += rate (E[deviation^2] - var - rate d^2).
    variance += (rate * (spread - variance - rate * shift.square())).to(variance.dtype)
    mean += (rate * shift).to(mean.dtype)


@torch.no_grad()
def normalise(samples: torch.Tensor, collectives: Collectives) -> torch.Tensor:
    """Shift and scale to mean 0 and standard deviation 1 over the samples of all ranks; every rank must call it.

    Args:
        samples: This rank's, of any shape.
        collectives: Adds them up.
    """
    exact = samples.double()
    moments = torch.stack([exact.sum(), exact.square().sum(), exact.new_tensor(float(exact.numel()))])
    total, total_of_squares, count = collectives.sum(moments)
    mean = total / count
    variance = (total_of_squares - count * mean.square()).clamp(min=0.0) / (count - 1)
    return ((exact - mean) / (variance.sqrt() + 1e-8)).to(samples.dtype)
