"""The study: what Optuna suggests, how trials are reported to it, and its journal in the sweep's folder."""

import contextlib
import fcntl
import os
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState, create_trial

from mjtrain.tools.sweep.run_files import State, TrialResult
from mjtrain.tools.sweep.space import Parameter, Value
from mjtrain.tools.sweep.successive_halving import Contender, SuccessiveHalving


def open_journal(path: Path) -> JournalStorage:
    """Open a journal; the file is made if it is not there.

    Raises:
        OSError: It cannot be written.
    """
    return JournalStorage(JournalFileBackend(str(path), lock_obj=_KernelLock(path)))


class _KernelLock(JournalFileOpenLock):
    """A lock that the kernel gives back when its process ends, however it ends.

    Optuna's own locks are files that a killed process leaves behind; the next process waits half a minute for them. A
    line that was cut short makes Optuna refuse the journal once another follows it, so whoever gets the lock removes
    it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._descriptor = -1

    def acquire(self) -> bool:
        """Wait for the lock, and mend the journal."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks; the sweep's folder is claimed besides
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        _remove_torn_line(self._descriptor)
        return True

    def release(self) -> None:
        """Give it back."""
        os.close(self._descriptor)


def _remove_torn_line(descriptor: int) -> None:
    """Cut a file after its last whole line."""
    size = end = os.fstat(descriptor).st_size
    while end > 0:
        begin = max(0, end - 4096)
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            end = begin + newline + 1
            break
        end = begin
    if end < size:
        os.ftruncate(descriptor, end)


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
        """Return the numbers of the trials that wait at a rung."""
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
            self._study.sampler = _Grid(values, seed=self._seed % 2**32)
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


class SpaceFillingSampler(optuna.samplers.BaseSampler):
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
