"""The study in a sweep's folder: what Optuna suggests, how trials are reported to it or pruned, and its plots."""

import contextlib
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, cast

import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import is_something_else, lock, replacing
from mjtrain.tools.sweep.plan import JOURNAL, PICTURE, REDUCTION_FACTOR, SUMMARY, SweepPlan
from mjtrain.tools.sweep.results import State, TrialResult
from mjtrain.tools.sweep.space import Parameter, Value

_IDENTITY = "mjtrain"
_TEACHER = "--teacher"  # beside the identity
_STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}

_PROMOTIONS = "promotions"  # attribute of a trial: the number of rungs that it continued from, or may continue from
_COLUMNS = 3  # plots of sweep.png beside each other

optuna.logging.set_verbosity(optuna.logging.ERROR)


class _SuccessiveHalving(optuna.pruners.BasePruner):
    """ASHA (Li et al., MLSys 2020): trials pause at rungs, and the best of each continue; see docs/sweeps.md."""

    # Unlike there, no more than the share of those that have come is promoted in total until the last has come:
    # otherwise each of the first few that is better than those before it would be. Optuna's own pruner ends trials.

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
        study._storage.set_trial_user_attr(trial._trial_id, _PROMOTIONS, _promotions(trials[trial.number]) + 1)
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
    return trial.user_attrs.get(_PROMOTIONS, 0)


class LostTrialError(RuntimeError):
    """Another process has a trial that was to be changed."""


class Trial(optuna.Trial):
    """A trial that has not ended; `should_prune` says whether it ends early, or with asha whether it pauses."""

    def __init__(self, study: optuna.Study, trial: FrozenTrial, *, was_begun: bool) -> None:
        super().__init__(study, trial._trial_id)
        self.was_begun = was_begun  # by an earlier start of the sweep
        self.is_ours: Callable[[], bool] = lambda: True  # whether this process still has the claim to it
        self.alone: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        """Keeps other processes from judging their trials during a with block."""

    @property
    def last_reported(self) -> int:
        """Iteration of the last value that was reported; 0 for none."""
        return max(self._cached_frozen_trial.intermediate_values, default=0)

    def is_due(self, iteration: int, interval: int) -> bool:
        """Whether to report an iteration: the first one with a value at or after each multiple of the interval."""
        return iteration // interval > self.last_reported // interval

    def report(self, value: float, step: int) -> None:
        """Keep a value of the metric, see Optuna."""
        self._check_ours()
        super().report(value, step)

    def should_prune(self) -> bool:
        """Judge the last value, see Optuna; two processes must not let a trial each continue where one may."""
        with self.alone():
            return super().should_prune()

    def record(self, **record: Any) -> None:
        """Keep plain values with it, by the names of fields of `TrialResult`."""
        self._check_ours()
        for name, content in record.items():
            self.set_user_attr(name, content)

    def end(self, state: State, value: float | None = None, **record: Any) -> None:
        """End it as complete with a value, as pruned with the one that was reported last, or as failed without one."""
        self.record(**record)
        self.study.tell(self, value, state=next(key for key, name in _STATES.items() if name == state))

    def _check_ours(self) -> None:
        if not self.is_ours():
            raise LostTrialError(f"trial {self.number}: another process has it now, because the lock on it was lost")


class Study:
    """All trials of a sweep."""

    def __init__(self, plan: SweepPlan) -> None:
        """Open the study in the folder of a sweep, or make one; that of something else is refused."""
        self.plan = plan
        """With the teacher that the sweep recorded, since which a newer one may have finished."""
        self._halving = _SuccessiveHalving(plan)
        path, identity = str(plan.folder / JOURNAL), plan.identity()
        for name in (JOURNAL, SUMMARY, PICTURE):
            if is_something_else(plan.folder / name):
                raise RequestError(
                    f"--sweep-dir {plan.folder}: its {name} is not a regular file; remove it, or give another folder"
                )
        try:
            storage = JournalStorage(JournalFileBackend(path, lock_obj=_KernelLock(path)))
            self._study = optuna.create_study(
                storage=storage, study_name="sweep", direction=plan.direction, load_if_exists=True, pruner=self._halving
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # a line that Optuna has not written
            raise RequestError(
                f"--sweep-dir {plan.folder}: its {JOURNAL} is damaged ({type(error).__name__}: {error}); restore it "
                "from a copy, or give another --sweep-dir"
            ) from error
        recorded_names = {name for trial in self._trials() for name in trial.user_attrs}
        if unknown := recorded_names - {_PROMOTIONS, *TrialResult.__dataclass_fields__}:
            raise RequestError(
                f"--sweep-dir {plan.folder}: its {JOURNAL} has {min(unknown)} of a trial, which this version does not "
                "record; restore it from a copy, or give another --sweep-dir"
            )
        if plan.options.pruner == "median":
            self._study.pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=plan.min_iterations)
        if (recorded := self._study.user_attrs.get(_IDENTITY)) is None:
            self._study.set_user_attr(_IDENTITY, recorded := identity)
        recorded = recorded if isinstance(recorded, dict) else {}  # of a file that something else has changed
        for name, value in identity.items():
            if recorded.get(name) != value:
                words = f"{name} {_write(recorded.get(name))}, not {_write(value)}"
                raise RequestError(f"--sweep-dir {plan.folder}: holds a sweep with {words}; give another --sweep-dir")
        if plan.teacher is not None:
            if _TEACHER not in recorded:
                self._study.set_user_attr(_IDENTITY, {**recorded, _TEACHER: plan.teacher})
            self.plan = replace(plan, teacher=recorded.get(_TEACHER, plan.teacher))

    def ask(self) -> Trial:
        """Begin a trial; one operation of the journal records it with all of its settings."""
        self._study.add_trial(self._suggest())
        return Trial(self._study, self._trials()[-1], was_begun=False)

    def ready(self) -> list[int]:
        """Return the numbers of the trials that were begun and may continue, if nobody runs them already."""
        trials = self._trials()
        begun = [trial for trial in trials if not trial.state.is_finished()]
        running = [trial.number for trial in begun if not self._halving.is_waiting(trial)]
        return running + self._halving.find_promotable(trials)

    def take_up(self, number: int) -> Trial:
        """Take up a trial that is ready."""
        trial = self._trials()[number]
        self._halving.prune(self._study, trial)
        return Trial(self._study, trial, was_begun=True)

    def hopeless(self) -> list[int]:
        """Return the numbers of the waiting trials that will never be promoted; somebody may be ending their runs."""
        return self._halving.find_hopeless(self._trials())

    def prune(self, number: int) -> None:
        """End a waiting trial that nobody runs any more."""
        self._study.tell(number, state=TrialState.PRUNED)

    def results(self) -> list[TrialResult]:
        """Return all trials, in the order in which they were begun."""
        return [self._to_result(trial) for trial in self._trials()]

    def draw(self) -> None:
        """Rewrite sweep.png, once a trial has a value: Optuna's plots, side by side."""
        import numpy as np
        from matplotlib import pyplot

        pictures: list[np.ndarray] = []
        for axes in plot_study(self._study, self.plan.metric):
            axes.figure.canvas.draw()
            pictures.append(np.asarray(axes.figure.canvas.buffer_rgba()))
            pyplot.close(axes.figure)
        if pictures:
            pictures += [np.full_like(pictures[0], 255)] * (-len(pictures) % _COLUMNS)
            rows = [np.hstack(pictures[first : first + _COLUMNS]) for first in range(0, len(pictures), _COLUMNS)]
            with replacing(self.plan.folder / PICTURE) as file:
                pyplot.imsave(cast(BinaryIO, file), np.vstack(rows), format="png")

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _suggest(self) -> FrozenTrial:
        """Choose the next settings as if waiting trials were pruned: Optuna takes running ones for bad ones."""
        options, space, number = self.plan.options, self.plan.options.parameters, len(self._trials())
        seed = (self.plan.seed * 100_003 + number) % 2**32
        tpe = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, constant_liar=True, multivariate=False)
        copy = optuna.create_study(direction=self._study.direction, sampler=tpe)
        if options.sampler == "random":
            copy.sampler = optuna.samplers.RandomSampler(seed=seed)
        elif options.sampler == "grid":
            values = {parameter.name: list(parameter.finite_values) for parameter in space}
            copy.sampler = optuna.samplers.GridSampler(values, seed=self.plan.seed % 2**32)
        for trial in self._study.get_trials():
            if self._halving.is_waiting(trial):
                trial.state, trial.datetime_complete = TrialState.PRUNED, trial.datetime_start
            copy.add_trial(trial)
        if options.sampler == "tpe" and number < min(10, max(3, options.trials // 2)):
            copy.enqueue_trial(_spread(space, number, self.plan.seed))
        copy.ask({parameter.name: _distribution(parameter) for parameter in space})
        return copy.trials[-1]

    def _to_result(self, trial: FrozenTrial) -> TrialResult:
        record = {name: value for name, value in trial.user_attrs.items() if name != _PROMOTIONS}
        state = "paused" if self._halving.is_waiting(trial) else _STATES.get(trial.state, "running")
        return TrialResult(number=trial.number, state=state, params=dict(trial.params), value=trial.value, **record)


class _KernelLock(JournalFileOpenLock):
    """A lock that the kernel gives back when its process ends; Optuna's own are files that a killed process leaves."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._path = path

    def acquire(self) -> bool:
        """Wait for the lock, and remove a line that was cut short; a journal that was deleted is not begun again."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks; the sweep's folder is claimed besides
            lock(self._descriptor, wait=True)
        size = os.fstat(self._descriptor).st_size
        if size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.ftruncate(self._descriptor, os.pread(self._descriptor, size, 0).rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        os.close(self._descriptor)


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.choices:
        return CategoricalDistribution(parameter.choices)
    if parameter.kind == "int":
        return IntDistribution(int(parameter.low), int(parameter.high))
    return FloatDistribution(parameter.low, parameter.high, log=parameter.kind == "log")


def _spread(space: Sequence[Parameter], number: int, seed: int) -> dict[str, Value]:
    """Return a point of a scrambled Sobol sequence; Optuna's QMCSampler draws categorical parameters at random."""
    engine = torch.quasirandom.SobolEngine(len(space), scramble=True, seed=seed).fast_forward(number)
    point = engine.draw(1, dtype=torch.float64)[0].tolist()
    return {parameter.name: parameter.value_at(share) for parameter, share in zip(space, point, strict=True)}


def _write(value: Any) -> str:
    return (" ".join(value) or "(none)") if isinstance(value, list) else str(value)


def plot_study(study: optuna.Study, metric: str) -> Iterator[Any]:
    """Yield the axes of a figure each: history, curves, importances, parallel coordinates, values over each setting.

    The latter are those of pruned trials too. Importances need several complete trials with different values.
    """
    import matplotlib
    from optuna.visualization import matplotlib as plots

    valued = optuna.create_study(direction=study.direction)
    for trial in study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED)):
        if trial.value is not None:
            trial.state = TrialState.COMPLETE
            valued.add_trial(trial)
    matplotlib.use("agg")  # without a window
    style: dict[Any, Any] = {"figure.figsize": (7.0, 5.0), "figure.constrained_layout.use": True}
    with warnings.catch_warnings(), matplotlib.rc_context(style):
        warnings.simplefilter("ignore")  # Optuna calls its plots experimental
        warnings.filterwarnings("error", message=".*importances will be equal")
        if valued.trials:
            yield plots.plot_optimization_history(study, target_name=metric)
            axes = plots.plot_intermediate_values(study)
            axes.legend().remove()  # a line for each trial
            yield axes
            with contextlib.suppress(ValueError, RuntimeError, UserWarning):
                yield plots.plot_param_importances(study, target_name=metric)
            yield plots.plot_parallel_coordinate(study, target_name=metric)
        for name in valued.trials[0].params if valued.trials else ():
            yield plots.plot_slice(valued, [name], target_name=metric)
