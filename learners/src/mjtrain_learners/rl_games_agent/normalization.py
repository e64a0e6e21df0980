"""rl_games' normaliser over all ranks."""

from typing import Any

import torch
from rl_games.algos_torch.running_mean_std import RunningMeanStd
from torch import nn

from mjtrain.learning import Collectives


class JobMeanStd(RunningMeanStd):
    """rl_games' running mean and variance, updated with the moments of all ranks' samples; it keeps one per rank."""

    def __init__(self, size: tuple[int, ...], collectives: Collectives) -> None:
        """Begin with mean 0 and variance 1.

        Args:
            size: Shape of a sample.
            collectives: Adds up over ranks.
        """
        super().__init__(size)
        self._collectives = collectives

    def _update_mean_var_count_from_moments(
        self, mean: Any, var: Any, count: Any, batch_mean: Any, batch_var: Any, batch_count: Any
    ) -> Any:
        """Take in the moments of this rank's samples; every rank must call it. Arguments as rl_games has them."""
        deviation = batch_mean.double() - mean  # from what all ranks share, so that no digits are lost
        squares = (batch_var.double() + deviation.square()) * batch_count
        sums = torch.cat([deviation * batch_count, squares, deviation.new_tensor([float(batch_count)])])
        self._collectives.sum(sums)
        size, number = deviation.shape[0], sums[-1]
        shift = sums[:size] / number
        spread = (sums[size:-1] / number - shift.square()).clamp(min=0.0)
        update: Any = super()._update_mean_var_count_from_moments
        return update(mean, var, count, mean + shift, spread, number)


def replace_normalisers(model: nn.Module, collectives: Collectives | None) -> None:
    """Replace the normalisers of a new model of rl_games.

    Those of rl_games are compiled by torch.jit, which changes them in the first calls: a run that is resumed might not
    compute the same.

    Args:
        model: Holds them, if any.
        collectives: Of the job; None with one rank.
    """
    for name in ("running_mean_std", "value_mean_std"):
        if hasattr(model, name):
            statistics = getattr(model, name).running_mean
            size = tuple(statistics.shape)
            replacement = RunningMeanStd(size) if collectives is None else JobMeanStd(size, collectives)
            setattr(model, name, replacement.to(statistics.device))
