"""Observation statistics over all ranks, with one collective."""

from collections.abc import Iterable

import torch
from rsl_rl.models import MLPModel
from rsl_rl.modules import EmpiricalNormalization

from mjtrain.rl.collectives import Collectives


class JobNormalization(EmpiricalNormalization):
    """RSL-RL's running mean and variance, updated with the exact moments of all ranks' samples.

    RSL-RL sums count, mean and variance one after the other; here their sums about the running mean, which all ranks
    share, go in one collective and in double precision.
    """

    def __init__(self, original: EmpiricalNormalization, collectives: Collectives) -> None:
        """Take the place of a normaliser, its statistics included."""
        super().__init__(original.mean.shape[0], original.eps, original.until)
        self.load_state_dict(original.state_dict())
        self.train(original.training)
        self._collectives = collectives

    @torch.no_grad()
    @torch.jit.unused
    def update(self, x: torch.Tensor) -> None:
        """Take in this rank's samples; every rank must call it.

        Args:
            x: Observations. Shape (num_samples, size).
        """
        if not self.training or (self.until is not None and self.count >= self.until):
            return
        mean, variance, std, count = self._mean, self._var, self._std, self.count
        assert isinstance(mean, torch.Tensor)
        assert isinstance(variance, torch.Tensor)
        assert isinstance(std, torch.Tensor)
        assert isinstance(count, torch.Tensor)
        deviations = (x - mean).double()
        sums = torch.cat([deviations.sum(0), deviations.square().sum(0), deviations.new_tensor([float(x.shape[0])])])
        self._collectives.sum(sums)
        size = mean.shape[1]
        new = sums[-1]
        shift, spread = sums[:size] / new, sums[size:-1] / new
        count += new.to(count.dtype)
        rate = new / count
        # With d the mean of the deviations: mean += rate d, var += rate (E[deviation^2] - var - rate d^2).
        variance += (rate * (spread - variance - rate * shift.square())).to(variance.dtype)
        mean += (rate * shift).to(mean.dtype)
        std.copy_(variance.sqrt())


def synchronise_normalisers(networks: Iterable[MLPModel], collectives: Collectives) -> None:
    """Replace the normalisers of networks that learn; given as modules, not as compiled wrappers."""
    for model in [module for network in networks for module in network.modules()]:
        original = getattr(model, "obs_normalizer", None)
        if isinstance(original, EmpiricalNormalization):
            model.obs_normalizer = JobNormalization(original, collectives).to(original.mean.device)
