"""The study: Optuna suggests settings, hears how trials go, and remembers all of it in the sweep's folder."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from mjtrain.sweep.journal import open_journal
from mjtrain.sweep.space import Parameter, Value
from mjtrain.sweep.trial_result import State, TrialResult

SamplerName = Literal["tpe", "random", "grid"]
PrunerName = Literal["asha", "median", "none"]

REDUCTION_FACTOR = 3
"""asha keeps one of this many trials at each rung, and rungs are this factor of iterations apart."""

_NAME = "sweep"
_IDENTITY = "mjtrain"
_STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Trial:
    """A trial that has not ended."""

    def __init__(self, trial: optuna.Trial, space: Sequence[Parameter], *, was_begun: bool) -> None:
        """Take up a trial, and choose the settings that it does not have yet."""
        self._trial = trial
        self.number: int = trial.number
        self.was_begun = was_begun
        """Whether an earlier start of the sweep has begun it."""
        self.params: dict[str, Value] = {parameter.name: _suggest(trial, parameter) for parameter in space}
        reported = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        self.last_reported = max(reported, default=0)
        """Iteration of the last value that was reported; 0 for none."""

    def report(self, iteration: int, value: float) -> None:
        """Say how good it is after an iteration."""
        self.last_reported = iteration
        self._trial.report(value, iteration)

    def should_prune(self) -> bool:
        """Ask whether it is worth going on with."""
        return self._trial.should_prune()

    def complete(self, value: float, record: dict[str, Any]) -> None:
        """End it with its value, and record plain values with it."""
        self._end(TrialState.COMPLETE, record, value)

    def prune(self, record: dict[str, Any]) -> None:
        """End it early; its value is the one that was reported last."""
        self._end(TrialState.PRUNED, record)

    def fail(self, cause: str, record: dict[str, Any]) -> None:
        """End it without a value."""
        self._end(TrialState.FAIL, {**record, "cause": cause})

    def _end(self, state: TrialState, record: dict[str, Any], value: float | None = None) -> None:
        for name, content in record.items():
            self._trial.set_user_attr(name, content)
        self._trial.study.tell(self._trial, value, state=state)


class _Grid(optuna.samplers.GridSampler):
    """Optuna's grid, which would end Optuna's own loop with the last combination; the loop is ours."""

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Do nothing."""


class Study:
    """All trials of a sweep."""

    def __init__(self, path: Path, identity: dict[str, Any], *, maximize: bool) -> None:
        """Open a study, or make one.

        Args:
            path: Its journal.
            identity: Plain values that say what is searched, see `read_identity`.
            maximize: Whether larger values are better.

        Raises:
            OSError: The journal cannot be written.
        """
        self._study = optuna.create_study(
            storage=open_journal(path),
            study_name=_NAME,
            direction="maximize" if maximize else "minimize",
            load_if_exists=True,
        )
        if _IDENTITY not in self._study.user_attrs:
            self._study.set_user_attr(_IDENTITY, identity)

    def configure(
        self,
        space: Sequence[Parameter],
        *,
        sampler: SamplerName,
        pruner: PrunerName,
        seed: int,
        num_trials: int,
        max_iterations: int,
    ) -> None:
        """Say how settings are suggested and when trials are pruned.

        Args:
            space: What is searched.
            sampler: How settings are suggested.
            pruner: Which trials end early.
            seed: Seed of the suggestions. Those of `random` and `grid` depend on it and on the trial's number only.
            num_trials: Trials of the sweep.
            max_iterations: Iterations of a run.
        """
        self._space = space
        self._sampler: SamplerName = sampler
        self._seed = seed
        self._num_trials = num_trials
        self._study.pruner = _make_pruner(pruner, max_iterations)

    def ask(self) -> Trial:
        """Begin a trial."""
        self._seed_sampler(len(self._study.get_trials(deepcopy=False)))
        return Trial(self._study.ask(), self._space, was_begun=False)

    def unfinished(self) -> list[int]:
        """Return the numbers of the trials that were begun and have not ended."""
        return [frozen.number for frozen in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))]

    def take_up(self, number: int) -> Trial:
        """Take up a trial that was begun."""
        self._seed_sampler(number)
        frozen = self._study.get_trials(deepcopy=False)[number]
        return Trial(optuna.Trial(self._study, frozen._trial_id), self._space, was_begun=True)

    def results(self) -> list[TrialResult]:
        """Return all trials, in the order in which they were begun."""
        return [_to_result(frozen) for frozen in self._study.get_trials(deepcopy=False)]

    def importances(self) -> dict[str, float]:
        """Estimate which share of the differences between values each parameter explains; empty with few trials."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*importances will be equal")
                return optuna.importance.get_param_importances(self._study)
        except (ValueError, RuntimeError, UserWarning):  # too few trials, or no differences
            return {}

    def _seed_sampler(self, number: int) -> None:
        """Make the sampler anew for a trial, so that a sweep that is started again does not repeat its suggestions."""
        seed = (self._seed * 100_003 + number) % 2**32
        if self._sampler == "random":
            self._study.sampler = optuna.samplers.RandomSampler(seed=seed)
        elif self._sampler == "grid":
            values = {parameter.name: list(parameter.finite_values or ()) for parameter in self._space}
            self._study.sampler = _Grid(values, seed=self._seed % 2**32)
        else:
            first = min(10, max(3, self._num_trials // 3))
            self._study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=first)


def read_identity(path: Path) -> dict[str, Any] | None:
    """Return what a study recorded about what it searches; None if there is no study, or it has no trials yet."""
    if not path.exists():
        return None
    try:
        study = optuna.load_study(study_name=_NAME, storage=open_journal(path))
    except KeyError:
        return None
    return study.user_attrs.get(_IDENTITY)


def _suggest(trial: optuna.Trial, parameter: Parameter) -> Value:
    if parameter.choices:
        return trial.suggest_categorical(parameter.name, parameter.choices)
    if parameter.kind == "int":
        return trial.suggest_int(parameter.name, int(parameter.low), int(parameter.high))
    return trial.suggest_float(parameter.name, parameter.low, parameter.high, log=parameter.kind == "log")


def _make_pruner(name: PrunerName, max_iterations: int) -> optuna.pruners.BasePruner:
    if name == "asha":
        first = max(1, max_iterations // REDUCTION_FACTOR**2)
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=REDUCTION_FACTOR)
    if name == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=max_iterations // 10)
    return optuna.pruners.NopPruner()


def _to_result(frozen: FrozenTrial) -> TrialResult:
    record = frozen.user_attrs
    return TrialResult(
        number=frozen.number,
        state=_STATES.get(frozen.state, "running"),
        params=dict(frozen.params),
        value=frozen.value,
        seed_values=tuple(record.get("seed_values", ())),
        env_steps=record.get("env_steps", 0),
        train_s=record.get("train_s", 0.0),
        iterations=record.get("iterations", 0),
        cause=record.get("cause", ""),
        runs=tuple(record.get("runs", ())),
        curve=dict(frozen.intermediate_values),
    )
