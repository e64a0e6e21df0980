"""Observation statistics over all ranks, with one collective."""

from collections.abc import Iterable

import torch
from rsl_rl.models import MLPModel
from rsl_rl.modules import EmpiricalNormalization

from mjtrain.learning.collectives import Collectives, update_moments


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
        update_moments(mean[0], variance[0], count, x, self._collectives)
        std.copy_(variance.sqrt())


def synchronise_normalisers(networks: Iterable[MLPModel], collectives: Collectives) -> None:
    """Replace the normalisers of networks that learn; given as modules, not as compiled wrappers."""
    for model in [module for network in networks for module in network.modules()]:
        original = getattr(model, "obs_normalizer", None)
        if isinstance(original, EmpiricalNormalization):
            model.obs_normalizer = JobNormalization(original, collectives).to(original.mean.device)
