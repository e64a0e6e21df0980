"""The first trials of a search: spread over the whole space, instead of drawn independently of each other."""

from collections.abc import Sequence
from typing import Any

import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial


class SpaceFillingSampler(optuna.samplers.BaseSampler):
    """A scrambled Sobol sequence over all parameters (Sobol 1967, Owen 1998), a point for each trial.

    Of 2**k trials in a row as many fall into each half, quarter and so on of every parameter. Optuna's QMCSampler draws
    categorical parameters at random, which in reinforcement learning are often those that matter most: networks.
    """

    def __init__(self, names: Sequence[str], seed: int) -> None:
        """Make the sequence.

        Args:
            names: Parameters, in the order of the dimensions.
            seed: Of the scrambling. A trial's settings depend on it and on the trial's number only.
        """
        self._names = tuple(names)
        self._seed = seed

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        """Return nothing: all parameters are asked for one by one."""
        return {}

    def sample_relative(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,  # noqa: ARG002
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Return nothing, see `infer_relative_search_space`."""
        return {}

    def sample_independent(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a parameter's value in a trial."""
        engine = torch.quasirandom.SobolEngine(len(self._names), scramble=True, seed=self._seed)
        engine.fast_forward(trial.number)
        point = engine.draw(1, dtype=torch.float64)[0, self._names.index(param_name)].item()
        return place(point, param_distribution)


def place(point: float, distribution: BaseDistribution) -> Any:
    """Return the value at a point of a distribution; equal parts of the interval are equally probable.

    Args:
        point: From 0 to below 1.
        distribution: A choice, a range of whole numbers, or one of numbers, whose logarithm may be what is uniform.
    """
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(point * len(distribution.choices))]
    if isinstance(distribution, IntDistribution):
        return distribution.low + int(point * (distribution.high - distribution.low + 1))
    assert isinstance(distribution, FloatDistribution)
    if distribution.log:
        return distribution.low * (distribution.high / distribution.low) ** point
    return distribution.low + point * (distribution.high - distribution.low)
