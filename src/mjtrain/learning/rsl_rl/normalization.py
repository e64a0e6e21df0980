"""Observation statistics over all ranks, with one collective, in double precision."""

from collections.abc import Iterable

import torch
from rsl_rl.models import MLPModel
from rsl_rl.modules import EmpiricalNormalization

from mjtrain.learning.collectives import Collectives, update_moments


class JobNormalization(EmpiricalNormalization):
    """RSL-RL's running mean and variance, updated with the exact moments of all ranks' samples.

    RSL-RL sums count, mean and variance one after the other; here their sums about the running mean, which all ranks
    share, go in one collective. Mean and variance are kept in double precision: in single precision, the share of one
    rollout is too small to change them after about 1e9 samples. Checkpoints of single precision load.
    """

    _mean: torch.Tensor
    _var: torch.Tensor
    _std: torch.Tensor
    count: torch.Tensor

    def __init__(self, original: EmpiricalNormalization, collectives: Collectives) -> None:
        """Take the place of a normaliser, its statistics included."""
        super().__init__(original.mean.shape[0], original.eps, original.until)
        self._mean, self._var = self._mean.double(), self._var.double()
        self.load_state_dict(original.state_dict())
        self.train(original.training)
        self._collectives = collectives

    @torch.no_grad()
    @torch.jit.unused
    def update(self, x: torch.Tensor) -> None:
        """Take in this rank's samples, shape (num_samples, size); every rank must call it."""
        if not self.training or (self.until is not None and self.count >= self.until):
            return
        update_moments(self._mean[0], self._var[0], self.count, x, self._collectives)
        self._std.copy_(self._var.sqrt())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise, in the precision of the samples; shapes as in `update`."""
        return (x - self._mean.to(x.dtype)) / (self._std + self.eps)

    @torch.jit.unused
    def inverse(self, y: torch.Tensor) -> torch.Tensor:
        """Undo `forward`."""
        return y * (self._std + self.eps) + self._mean.to(y.dtype)


def synchronise_normalisers(networks: Iterable[MLPModel], collectives: Collectives) -> None:
    """Replace the normalisers of networks that learn; given as modules, not as compiled wrappers."""
    for model in [module for network in networks for module in network.modules()]:
        original = getattr(model, "obs_normalizer", None)
        if isinstance(original, EmpiricalNormalization):
            model.obs_normalizer = JobNormalization(original, collectives).to(original.mean.device)
