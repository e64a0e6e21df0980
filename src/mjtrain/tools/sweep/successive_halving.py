"""ASHA: trials pause at rungs, and the best of each rung continue.

The variant of Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020. Unlike there, no more
than the share of those that have come is promoted in total until the last has come: otherwise each of the first few
that is better than those before it would be, and most of these are not good (docs/sweeps.md).
"""

import math
from collections.abc import Sequence

import optuna
from optuna.trial import FrozenTrial, TrialState

from mjtrain.tools.sweep.plan import REDUCTION_FACTOR, SweepPlan

PROMOTIONS = "promotions"  # attribute of a trial: the number of rungs that it continued from, or may continue from


class SuccessiveHalving(optuna.pruners.BasePruner):
    """Which of all trials may continue, must wait, or will never continue; Optuna's own pruner ends those that wait."""

    def __init__(self, plan: SweepPlan) -> None:
        """Place the rungs; with another pruner there are none."""
        self._rungs: list[int] = []
        rung = plan.min_iterations
        while plan.options.pruner == "asha" and rung < plan.max_iterations:
            self._rungs.append(rung)
            rung *= REDUCTION_FACTOR
        self._num_trials = plan.options.trials
        self._sign = plan.sign

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Return whether a trial must wait at a rung; that it need not is recorded."""
        trials = study.get_trials(deepcopy=False)
        if not self.is_waiting(trials[trial.number]):
            return False
        if trial.number not in self.find_promotable(trials):
            return True
        study._storage.set_trial_user_attr(trial._trial_id, PROMOTIONS, _promotions(trials[trial.number]) + 1)
        return False

    def is_waiting(self, trial: FrozenTrial, at: int | None = None) -> bool:
        """Whether a trial has arrived at a rung, or at this one, from which it was not promoted."""
        rung = _promotions(trial)
        if trial.state.is_finished() or rung >= len(self._rungs) or at not in (None, rung):
            return False
        return self._value_at(trial, rung) is not None

    def find_promotable(self, trials: Sequence[FrozenTrial]) -> list[int]:
        """Return which waiting trials may continue, those of the highest rung first, and of a rung the best first."""
        found: list[int] = []
        for rung in reversed(range(len(self._rungs))):
            is_last = len(trials) >= self._num_trials and not self._is_awaited(trials, rung)
            best = self._find_best(trials, rung, least=1 if is_last else 0)
            waiting = [other.number for other in best if self.is_waiting(other, rung)]
            if not is_last:
                arrived = [other for other in trials if self._value_at(other, rung) is not None]
                promoted = sum(_promotions(other) > rung for other in arrived)
                waiting = waiting[: max(0, len(arrived) // REDUCTION_FACTOR - promoted)]
            found += waiting
        return found

    def find_hopeless(self, trials: Sequence[FrozenTrial]) -> list[int]:
        """Return which waiting trials will never be promoted, as nobody else will arrive at their rung."""
        found: list[int] = []
        for rung in range(len(self._rungs) if len(trials) >= self._num_trials else 0):
            if self._is_awaited(trials, rung):
                break
            best = self._find_best(trials, rung, least=1)
            found += [other.number for other in trials if self.is_waiting(other, rung) and other not in best]
            trials = [other for other in trials if other.number not in found]
        return found

    def _is_awaited(self, trials: Sequence[FrozenTrial], rung: int) -> bool:
        """Whether a trial that was begun may still arrive at a rung."""
        return any(not other.state.is_finished() and self._value_at(other, rung) is None for other in trials)

    def _find_best(self, trials: Sequence[FrozenTrial], rung: int, *, least: int) -> list[FrozenTrial]:
        """Return the best at a rung, best first: of those that have not failed the share that continues."""
        arrived = [
            (-math.inf if math.isnan(value) else self._sign * value, -other.number, other)
            for other in trials
            if other.state != TrialState.FAIL and (value := self._value_at(other, rung)) is not None
        ]
        keep = max(len(arrived) // REDUCTION_FACTOR, least)
        return [other for *_, other in sorted(arrived, reverse=True)[:keep]]

    def _value_at(self, trial: FrozenTrial, rung: int) -> float | None:
        """Return the first value that was reported at a rung or after it."""
        reported = [pair for pair in trial.intermediate_values.items() if pair[0] >= self._rungs[rung]]
        return min(reported)[1] if reported else None


def _promotions(trial: FrozenTrial) -> int:
    return trial.user_attrs.get(PROMOTIONS, 0)
