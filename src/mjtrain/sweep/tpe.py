"""Optuna's tree-structured Parzen estimator, which also learns from trials that wait at a rung."""

from collections.abc import Collection
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial


class TpeSampler(optuna.samplers.BaseSampler):
    """What `optuna.samplers.TPESampler` suggests if trials that wait count as pruned where they are.

    A waiting trial has not ended, so Optuna would take its settings for bad ones, as it takes those of trials that run
    (`constant_liar`), although what it has reported says how good it is: the longer a pruned trial was, and the better
    its last value, the better its settings are taken to be.
    """

    def __init__(self, waiting: Collection[int], seed: int) -> None:
        """Make the estimator.

        Args:
            waiting: Numbers of the trials that wait.
            seed: Of the suggestions.
        """
        self._waiting = frozenset(waiting)
        self._tpe = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, constant_liar=True)

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
