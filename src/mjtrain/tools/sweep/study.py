"""The study: what Optuna suggests, and how trials are reported to it."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from mjtrain.tools.sweep.journal import open_journal
from mjtrain.tools.sweep.run_files import State, TrialResult
from mjtrain.tools.sweep.samplers import GridSampler, SpaceFillingSampler, TpeSampler
from mjtrain.tools.sweep.space import Parameter, Value
from mjtrain.tools.sweep.successive_halving import Contender, SuccessiveHalving

SamplerName = Literal["tpe", "random", "grid"]
PrunerName = Literal["asha", "median", "none"]

_NAME = "sweep"
_IDENTITY = "mjtrain"
_PROMOTIONS = "promotions"
_STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}

optuna.logging.set_verbosity(optuna.logging.ERROR)


class LostTrialError(RuntimeError):
    """Another process has the trial now."""


class Trial:
    """A trial that has not ended. What ends it raises a LostTrialError if another process has it now."""

    def __init__(self, study: "Study", trial: optuna.Trial, space: Sequence[Parameter], *, was_begun: bool) -> None:
        """Take up a trial, and choose the settings that it does not have yet."""
        self._study = study
        self._trial = trial
        self.number: int = trial.number
        self.was_begun = was_begun
        """Whether an earlier start of the sweep has begun it."""
        self.params: dict[str, Value] = {parameter.name: _suggest(trial, parameter) for parameter in space}
        reported = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        self.last_reported = max(reported, default=0)
        """Iteration of the last value that was reported; 0 for none."""
        self.is_ours: Callable[[], bool] = lambda: True
        """Tells whether this process still has the claim to it."""

    def report(self, iteration: int, value: float) -> None:
        """Say how good it is after an iteration."""
        self.last_reported = iteration
        self._trial.report(value, iteration)

    def should_prune(self) -> bool:
        """Ask whether it is not worth continuing with."""
        return self._trial.should_prune()

    def should_pause(self) -> bool:
        """Return whether it must wait for others; if not, it passes the rung. `Study.ready` says when it continues."""
        return not self._study.promote(self.number)

    def pause(self, record: dict[str, Any]) -> None:
        """Record plain values of it, so that they are there if it is never gone on with."""
        self._set(record)

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
        if not self.is_ours():
            raise LostTrialError(f"trial {self.number}: another process has it now, because the lock on it was lost")
        self._set(record)
        self._trial.study.tell(self._trial, value, state=state)

    def _set(self, record: dict[str, Any]) -> None:
        for name, content in record.items():
            self._trial.set_user_attr(name, content)


class Study:
    """All trials of a sweep."""

    def __init__(self, path: Path, identity: dict[str, Any], *, maximize: bool) -> None:
        """Open a study, or make one.

        Raises:
            OSError: The journal cannot be written.
        """
        self._study = optuna.create_study(
            storage=open_journal(path),
            study_name=_NAME,
            direction="maximize" if maximize else "minimize",
            load_if_exists=True,
        )
        self._maximize = maximize
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
        min_iterations: int,
    ) -> None:
        """Say how settings are suggested and when trials are pruned.

        Args:
            seed: Seed of the suggestions. Those of `random` and `grid` depend on it and on the trial's number only.
            min_iterations: Iterations before which no trial is pruned, at least 1.
        """
        self._space = space
        self._sampler: SamplerName = sampler
        self._seed = seed
        self._num_trials = num_trials
        self._halving: SuccessiveHalving | None = None
        self._study.pruner = optuna.pruners.NopPruner()
        if pruner == "asha":
            self._halving = SuccessiveHalving(min_iterations, max_iterations, maximize=self._maximize)
        elif pruner == "median":
            self._study.pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=min_iterations)

    def ask(self) -> Trial:
        """Begin a trial."""
        self._seed_sampler(len(self._study.get_trials(deepcopy=False)))
        return Trial(self, self._study.ask(), self._space, was_begun=False)

    def ready(self) -> list[int]:
        """Return the numbers of the trials that were begun and may continue; those that wait for nothing come first.

        Which trials nobody runs already, the caller has to know.
        """
        running = [frozen.number for frozen in self._trials() if frozen.state == TrialState.RUNNING]
        if self._halving is None:
            return running
        waiting = self._waiting()
        promotable = self._halving.find_promotable(self._contenders(), all_begun=self._all_begun)
        return [number for number in running if number not in waiting] + promotable

    def take_up(self, number: int) -> Trial:
        """Take up a trial that is ready."""
        self.promote(number)
        self._seed_sampler(number)
        return Trial(self, optuna.Trial(self._study, self._trials()[number]._trial_id), self._space, was_begun=True)

    def promote(self, number: int) -> bool:
        """Let a trial continue, if it does not have to wait at a rung; return whether it may."""
        if self._halving is None:
            return True
        contenders = self._contenders()
        if not self._halving.is_waiting(contenders[number]):
            return True
        if number not in self._halving.find_promotable(contenders, all_begun=self._all_begun):
            return False
        trial = optuna.Trial(self._study, self._trials()[number]._trial_id)
        trial.set_user_attr(_PROMOTIONS, contenders[number].promotions + 1)
        return True

    def hopeless(self) -> list[int]:
        """Return the numbers of the waiting trials that will never be promoted; somebody may be ending their runs."""
        if self._halving is None:
            return []
        return self._halving.find_hopeless(self._contenders(), all_begun=self._all_begun)

    def prune(self, number: int) -> None:
        """End a waiting trial that nobody runs any more."""
        self._study.tell(number, state=TrialState.PRUNED)

    def results(self) -> list[TrialResult]:
        """Return all trials, in the order in which they were begun."""
        results = [_to_result(frozen) for frozen in self._trials()]
        if self._halving is not None:
            waiting = self._waiting()
            results = [replace(result, state="paused") if result.number in waiting else result for result in results]
        return results

    def importances(self) -> dict[str, float]:
        """Estimate which share of the differences between values each parameter explains; empty with few trials."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*importances will be equal")
                return optuna.importance.get_param_importances(self._study)
        except (ValueError, RuntimeError, UserWarning):  # too few trials, or no differences
            return {}

    @property
    def _all_begun(self) -> bool:
        return len(self._trials()) >= self._num_trials

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _waiting(self) -> set[int]:
        if self._halving is None:
            return set()
        return {other.number for other in self._contenders() if self._halving.is_waiting(other)}

    def _contenders(self) -> list[Contender]:
        return [
            Contender(
                number=frozen.number,
                curve=frozen.intermediate_values,
                promotions=frozen.user_attrs.get(_PROMOTIONS, 0),
                is_open=frozen.state == TrialState.RUNNING,
                has_failed=frozen.state == TrialState.FAIL,
            )
            for frozen in self._trials()
        ]

    def _seed_sampler(self, number: int) -> None:
        """Make the sampler again for a trial, so that a sweep that is started again does not repeat its suggestions."""
        seed = (self._seed * 100_003 + number) % 2**32
        if self._sampler == "random":
            self._study.sampler = optuna.samplers.RandomSampler(seed=seed)
        elif self._sampler == "grid":
            values = {parameter.name: list(parameter.finite_values or ()) for parameter in self._space}
            self._study.sampler = GridSampler(values, seed=self._seed % 2**32)
        elif number < min(10, max(3, self._num_trials // 2)):
            names = [parameter.name for parameter in self._space]
            self._study.sampler = SpaceFillingSampler(names, self._seed)
        else:
            self._study.sampler = TpeSampler(self._waiting(), seed)


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
