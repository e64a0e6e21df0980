"""How the settings of trials are suggested, where Optuna's own samplers do not fit."""

from collections.abc import Collection, Sequence
from typing import Any

import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial


class GridSampler(optuna.samplers.GridSampler):
    """Optuna's grid, which would end Optuna's own loop with the last combination; the loop is ours."""

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Do nothing."""


class _OneByOne(optuna.samplers.BaseSampler):
    """A sampler that is asked for each parameter by itself."""

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


class SpaceFillingSampler(_OneByOne):
    """A scrambled Sobol sequence over all parameters (Sobol 1967, Owen 1998), a point for each trial.

    Of 2**k trials in a row, the same number falls into each half, quarter and so on of every parameter. Optuna's
    QMCSampler draws categorical parameters at random, which in reinforcement learning are often those that matter
    most: networks.
    """

    def __init__(self, names: Sequence[str], seed: int) -> None:
        """Make the sequence.

        Args:
            seed: Of the scrambling. A trial's settings depend on it and on the trial's number only.
        """
        self._names = tuple(names)
        self._seed = seed

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


class TpeSampler(_OneByOne):
    """What `optuna.samplers.TPESampler` suggests if trials that wait count as pruned where they are.

    A waiting trial has not ended, so Optuna would take its settings for bad ones, as it takes those of trials that run
    (`constant_liar`), although what it has reported says how good it is: the longer a pruned trial was, and the better
    its last value, the better its settings are taken to be.
    """

    def __init__(self, waiting: Collection[int], seed: int) -> None:
        """Make the estimator."""
        self._waiting = frozenset(waiting)
        self._tpe = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, constant_liar=True)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a parameter's value in a trial."""
        return self._tpe.sample_independent(self._see(study, trial), trial, param_name, param_distribution)

    def _see(self, study: optuna.Study, trial: FrozenTrial) -> optuna.Study:
        """Return a study of the other trials, in which those that wait are pruned."""
        seen = optuna.create_study(direction=study.direction)
        for other in study.get_trials(deepcopy=False):
            if other.number == trial.number or other.state == TrialState.FAIL:
                continue
            seen.add_trial(
                create_trial(
                    state=TrialState.PRUNED if other.number in self._waiting else other.state,
                    value=other.value if other.state == TrialState.COMPLETE else None,
                    params=other.params,
                    distributions=other.distributions,
                    intermediate_values=other.intermediate_values,
                )
            )
        return seen
