"""Hooks: checkpoints, drift, best iteration, NaN, overflow, warnings, names of losses, report, stop, evaluation."""

import time
from pathlib import Path
from typing import Any

import torch

from mjtrain.env.env import Env
from mjtrain.env.nan_guard import check_nan_resets
from mjtrain.learning.collectives import Collectives
from mjtrain.learning.learner import IterationResult
from mjtrain.runs.checkpoint import (
    BEST_FILE,
    BestCheckpoint,
    checkpoint_path,
    find_valid_checkpoint,
    prune_checkpoints,
    read_best,
    write_best,
)
from mjtrain.runs.storage.uploader import Uploader, UploadEvent
from mjtrain.runtime import heartbeat
from mjtrain.runtime.errors import OutsideError, count, suggest
from mjtrain.runtime.files import describe_absence
from mjtrain.runtime.standard_streams import write_to_stderr
from mjtrain.training.hooks.base import Hook, HookContext
from mjtrain.training.metric_rules import Ranking, find_ranking, parse_stop_condition
from mjtrain.training.reporting.report import RunReport

_MARGIN = 1.25
"""How much more room for a buffer is proposed than was asked for: where some was missing, not all was asked for."""

_MORE_MEMORY = 'raise memory in <size memory="…"/> of the robot\'s file, or remove it'
_ADVICE = {
    "inertia": "an inertia matrix was close to singular: look at masses, inertias and armature, and at events that "
    "change them",
    "contacts": f"there was no room for all contacts, and the excess is dropped: {_MORE_MEMORY}",
    "constraints": f"there was no room for all constraints, and the excess is dropped: {_MORE_MEMORY}",
    "bad_qpos": "a position was NaN or above 1e10",
    "bad_qvel": "a velocity was NaN or above 1e10",
    "bad_qacc": "an acceleration was NaN or above 1e10",
    "bad_ctrl": "a control was NaN or above 1e10, and MuJoCo used 0 instead: give the action terms a clip",
}


def record_best(run_dir: Path, best: BestCheckpoint, report: RunReport) -> bool:
    """Record which checkpoint is the best, and return whether that was done; otherwise a warning says so."""
    try:
        write_best(run_dir, best)
    except OSError as error:
        report.warn(f"{run_dir / BEST_FILE} could not be written ({error.strerror}); training continues")
        return False
    return True


class CheckpointHook(Hook):
    """Saves the run now and then, and has the main rank upload what is saved.

    A save or an upload that fails is reported and does not end the training, except the last save.
    """

    def __init__(self, context: HookContext) -> None:
        """Prepare to save; the checkpoint from which a run was resumed is uploaded first."""
        super().__init__(context)
        run, run_dir = context.config.run, context.run_dir
        self._uploader: Uploader | None = None
        if context.report is not None and run.checkpoint_url is not None:
            self._uploader = Uploader(run.checkpoint_url, run.keep_checkpoints, context.claim, is_new=context.is_new)
            if context.learner.iteration > 0:
                self._uploader.submit(checkpoint_path(run_dir, context.learner.iteration))
                best = read_best(run_dir)
                if best is not None:  # an earlier start may have ended before it was stored
                    self._uploader.submit_best(checkpoint_path(run_dir, best.iteration))

    def after_iteration(self, result: IterationResult) -> None:
        """Save, if it is due (collective), and report finished uploads; pause then if the launcher asked for it.

        Raises:
            OutsideError: The last iteration could not be saved.
        """
        context = self._context
        if context.is_save_due(result):
            heartbeat.beat("save")
            is_saved, is_recorded = self._save(checkpoint_path(context.run_dir, result.iteration), result)
            if result.is_best and not result.is_last:
                result.is_best = context.learner.agree(is_recorded)
            if result.pause_requested and not result.is_last:
                context.is_paused = context.learner.agree(is_saved)
        if self._uploader is not None:
            self._tell(self._uploader.poll_events())

    def finish(self) -> None:
        """Wait for the last upload, at most --checkpoint-flush-s, and report it.

        Raises:
            OutsideError: The last checkpoint, or the best one, is not in the storage, and no signal ended the run.
        """
        if self._uploader is None:
            return
        self._tell(self._uploader.flush(self._context.config.run.checkpoint_flush_s))
        goes_on = heartbeat.current.stop_agreed or self._context.is_paused  # what starts it again uploads it
        if self._uploader.missing is not None and not goes_on:
            raise OutsideError(self._uploader.missing)

    def __exit__(self, *exc_info: object) -> None:
        if self._uploader is not None:
            self._uploader.close()

    def _save(self, path: Path, result: IterationResult) -> tuple[bool, bool]:
        """Save, and tell whether that was done and recorded if it is the best one, as far as this rank knows."""
        config, run_dir, report = self._context.config, self._context.run_dir, self._context.report
        try:
            self._context.learner.save(path, {"task": config.task})
        except OSError as error:
            self._handle_failed_save(path, error, is_last=result.is_last)
            return False, False
        is_best = True
        if report is not None:
            report.add_checkpoint(path)
            is_best = self._record_best(result, report)
            best = read_best(run_dir)
            kept = None if best is None else best.iteration
            prune_checkpoints(run_dir, config.run.keep_checkpoints, kept, result.iteration)
            if self._uploader is not None:
                self._uploader.submit(path, is_best=is_best)
        return True, is_best

    def _record_best(self, result: IterationResult, report: RunReport) -> bool:
        """Record that a checkpoint which was just saved is the best, if it is, and return whether that was done."""
        ranking = find_ranking(self._context.config.run)
        if not result.is_best or ranking is None:
            return False
        value = result.metrics[ranking.metric]
        best = BestCheckpoint(metric=ranking.metric, value=value, iteration=result.iteration)
        return record_best(self._context.run_dir, best, report)

    def _handle_failed_save(self, path: Path, error: OSError, *, is_last: bool) -> None:
        """Report that a checkpoint could not be written, and end the run if it was the last one."""
        run_dir = self._context.run_dir
        absence = describe_absence(run_dir)
        if absence is not None:
            problem = f"the run directory {run_dir} {absence}"
        else:
            last = find_valid_checkpoint(run_dir)[0]
            kept = f"the last whole one is {last.name}" if last is not None else "there is none yet"
            problem = f"checkpoint {path} could not be written ({error.strerror}); {kept}"
            if not is_last:
                self._context.warn(f"{problem}; training continues")
        if is_last:
            raise OutsideError(f"{problem}; iteration {self._context.learner.iteration} is not saved") from error

    def _tell(self, events: list[UploadEvent]) -> None:
        assert self._context.report is not None
        for event in events:
            self._context.report.add_event(event.event, event.line, event.fields)


class DriftHook(Hook):
    """Compares the ranks now and then, and before each save: a checkpoint of ranks that differ is never written."""

    def after_iteration(self, result: IterationResult) -> None:
        """Compare, if it is due; collective. Raises a RuntimeError if the ranks differ."""
        if not (interval := self._context.config.run.drift_check_interval):
            return
        is_before_save = self._context.is_save_due(result)
        if is_before_save:
            heartbeat.beat("save")
        if is_before_save or result.iteration % interval == 0:
            self._context.learner.check_drift()


class BestHook(Hook):
    """Marks the iterations that are better than all before, by --best-metric.

    It compares iterations with an evaluation, and those that are saved anyway.
    """

    def __init__(self, context: HookContext, ranking: Ranking) -> None:
        """Learn how good the best one was before a resumption; every rank must call it."""
        super().__init__(context)
        self._ranking = ranking
        best = read_best(context.run_dir) if context.rank_context.is_main else None  # others may not be able to read it
        if best is not None and (best.metric != ranking.metric or best.iteration > context.learner.iteration):
            best = None  # by another metric, or of iterations that are repeated now
        self._best = context.from_main(None if best is None else best.value)
        value = context.from_main(context.read_restored().get(ranking.metric))
        if value is not None and ranking.is_better(value, self._best):  # the run ended before it recorded this
            best = BestCheckpoint(metric=ranking.metric, value=value, iteration=context.learner.iteration)
            if context.learner.agree(context.report is None or record_best(context.run_dir, best, context.report)):
                self._best = value
        self._last: tuple[IterationResult, float | None] | None = None
        """The last one that was marked, and the best value before it."""

    def after_iteration(self, result: IterationResult) -> None:
        """Compare; all ranks have the same metrics, so all of them save."""
        if self._last is not None and not self._last[0].is_best:  # it could not be saved
            self._best = self._last[1]
        self._last = None
        if not (self._context.is_save_due(result) or "eval/return" in result.metrics):
            return
        value = result.metrics.get(self._ranking.metric)
        if self._ranking.is_better(value, self._best):
            self._last = result, self._best
            self._best, result.is_best = value, True


class NanHook(Hook):
    """Dumps the worlds that diverged, and ends the training when too many did."""

    def __init__(self, context: HookContext) -> None:
        super().__init__(context)
        self._told: set[bool] = set()
        """Whether worlds that broke were written, of what was told."""
        self._folder = context.run_dir / "nan"

    def after_iteration(self, result: IterationResult) -> None:
        """Dump and count; collective when too many worlds broke, which all ranks know from the metrics.

        Raises:
            FloatingPointError: See `check_nan_resets`; the same on all ranks.
        """
        if result.metrics["nan_resets"]:
            cause = self._context.env.explain_broken_worlds()
            problem = self._dump(f"iteration_{result.iteration}_rank_{self._context.rank_context.rank}")
            if (problem is None) not in self._told:
                self._tell(result, problem)
            self._told.add(problem is None)
            check_nan_resets(result.metrics, self._context.config.env.nan_guard, lambda: self._choose(cause))

    def _choose(self, cause: str) -> str:
        """Return the cause on the first rank that has one; most ranks may have no broken world."""
        context = self._context.rank_context
        causes = Collectives(context.device).gather_plain(cause, context)
        rank = next((rank for rank, text in enumerate(causes) if text), 0)
        return f"on rank {rank}, {causes[rank]}" if context.is_distributed else causes[rank]

    def _dump(self, name: str) -> str | None:
        """Write the last seconds of the worlds that broke here, and return why that was not possible."""
        try:
            # Other ranks may have to make the folder.
            if self._context.report is not None and not self._context.run_dir.is_dir():
                return "the run directory is missing"
            self._context.env.dump_broken_worlds(self._folder, name)
        except OSError as error:
            return error.strerror or str(error)
        return None

    def _tell(self, result: IterationResult, problem: str | None) -> None:
        where = f"are in {self._folder} (mjtrain play TASK --replay FILE)"
        if problem is not None:
            where = f"could not be written to {self._folder} ({problem})"
        self._context.warn(
            f"worlds broke in iteration {result.iteration} (nan_resets {result.metrics['nan_resets']:g}) and begin "
            f"new episodes; their last seconds {where}"
        )
        if self._context.report is None and problem is not None:
            write_to_stderr(f"the last seconds of worlds that broke {where}")


class OverflowHook(Hook):
    """Warns once of each buffer of the engine that was too small, and names the setting that would have fitted."""

    def __init__(self, context: HookContext) -> None:
        super().__init__(context)
        self._buffers = dict(context.env.engine.buffers) if isinstance(context.env, Env) else {}

    def after_iteration(self, result: IterationResult) -> None:
        """Warn, if it is due; collective when some rank had no room, which all know from the metrics."""
        for name, buffer in list(self._buffers.items()):
            num_worlds = result.metrics[f"overflow/{name}"]
            if not num_worlds:
                continue
            del self._buffers[name]
            context, device = self._context.rank_context, self._context.env.device
            by_rank = torch.zeros(context.world_size, device=device)
            by_rank[context.rank] = buffer.find_need()
            need = int(Collectives(device).sum(by_rank).max())
            room = 8 * max(1, -int(-need * _MARGIN // 8))
            self._context.warn(
                f"{buffer.setting} {buffer.size}: in iteration {result.iteration} there was no room for all "
                f"{name} of {num_worlds} worlds, and the excess is dropped; up to {need} per world "
                f"were asked for, so {buffer.setting} {room} should do"
            )


class WarningHook(Hook):
    """Says once of each of MuJoCo's warnings in how many worlds it was given."""

    def __init__(self, context: HookContext) -> None:
        super().__init__(context)
        self._untold = set(_ADVICE)

    def after_iteration(self, result: IterationResult) -> None:
        """Warn, if it is due."""
        for name in sorted(self._untold):
            num_worlds = result.metrics.get(f"warning/{name}", 0)
            if num_worlds:
                self._untold.remove(name)
                self._context.warn(
                    f"MuJoCo in {count(num_worlds, 'world')} of iteration {result.iteration}: {_ADVICE[name]}"
                )


class LossNameHook(Hook):
    """Warns of losses in --best-metric and --stop-when that a learner or an algorithm of others does not report."""

    def __init__(self, context: HookContext) -> None:
        super().__init__(context)
        run, ranking = context.config.run, find_ranking(context.config.run)
        asked = {f"--stop-when {text}": parse_stop_condition(text).metric for text in run.stop_when}
        if ranking is not None:
            asked[f"--best-metric {run.best_metric}"] = ranking.metric
        self._asked = {flag: metric for flag, metric in asked.items() if metric.startswith("loss/")}

    def after_iteration(self, result: IterationResult) -> None:
        """Warn after the first iteration that reports losses."""
        losses = [name for name in result.metrics if name.startswith("loss/")]
        if not losses:
            return
        for flag, metric in self._asked.items():
            if metric not in losses:
                self._context.warn(f"{flag}: iteration {result.iteration} has no {metric}{suggest(metric, losses)}")
        self._asked = {}


class ReportHook(Hook):
    """Hands each iteration's metrics to the report, on the main rank."""

    def after_iteration(self, result: IterationResult) -> None:
        """Report the metrics, then the videos that were done meanwhile."""
        if self._context.report is not None:
            self._context.report.update(result.metrics)

    def finish(self) -> None:
        """Report the last videos."""
        if self._context.report is not None:
            self._context.report.flush_videos()


class StopWhenHook(Hook):
    """Ends the training with the first iteration that meets a condition of --stop-when, which the restored one may."""

    def __init__(self, context: HookContext) -> None:
        """Compare the iteration from which a run is resumed; every rank must call it."""
        super().__init__(context)
        if context.learner.iteration < context.last_iteration:
            row = context.read_restored()
            names = [parse_stop_condition(text).metric for text in context.config.run.stop_when]
            self._ends({name: context.from_main(row.get(name)) for name in names}, context.learner.iteration)

    def after_iteration(self, result: IterationResult) -> None:
        """Compare, unless the training ends here anyway; all ranks have the same metrics, so all of them end."""
        result.is_last = result.is_last or self._ends(result.metrics, result.iteration)

    def _ends(self, metrics: dict[str, Any], iteration: int) -> bool:
        """Tell whether an iteration meets a condition, and note which."""
        if (condition := self._context.find_met(metrics)) is None:
            return False
        value = metrics[condition.metric]
        self._context.ended_by = f"--stop-when {condition}: {value:.15g} after {count(iteration, 'iteration')}"
        return True

    def finish(self) -> None:
        """Say why the training ends here."""
        if self._context.ended_by is not None and self._context.report is not None:
            self._context.report.tell(f"ends as planned by {self._context.ended_by}")


class EvaluationHook(Hook):
    """Measures the policy every --eval-interval iterations and after the last one, and adds eval/* to the metrics.

    A request to stop ends an evaluation, without numbers, and the training. A resumed training makes up for it.
    """

    def __init__(self, context: HookContext) -> None:
        """Build the worlds of the evaluation, on every rank."""
        from mjtrain.evaluation.evaluator import Evaluator  # only where policies are evaluated

        super().__init__(context)
        self._evaluator = Evaluator(context.rank_context, context.config)
        self._warming_up = True

    def __enter__(self) -> "EvaluationHook":
        """Evaluate the restored iteration, if that was due and is missing; collective.

        The numbers go into its line of metrics.jsonl, which hooks that are made later read.
        """
        try:
            self._make_up()
        except BaseException:  # __exit__ is not called where __enter__ fails
            self._evaluator.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._evaluator.close()

    def _make_up(self) -> None:
        row = self._context.read_restored()
        restored = IterationResult(iteration=self._context.learner.iteration, is_last=False, metrics=row)
        is_missing = bool(row) and "eval/return" not in row and self._is_due(restored)
        if self._context.from_main(float(is_missing)):
            heartbeat.stop_requested()  # from here on a signal ends the evaluation, on ranks that play no episode too
            metrics = self._evaluate()
            if self._context.report is not None and metrics is not None:
                self._context.report.update({**row, **metrics})

    def after_iteration(self, result: IterationResult) -> None:
        """Evaluate, if it is due; collective."""
        if not self._is_due(result):
            return
        metrics = self._evaluate()
        if metrics is None:
            result.is_last = True
        else:
            result.metrics |= metrics

    def _evaluate(self) -> dict[str, Any] | None:
        """Return the metrics of an evaluation; None if a rank was asked to stop."""
        heartbeat.beat("evaluation", warming_up=self._warming_up)  # the first one may compile kernels
        self._warming_up = False
        began = time.perf_counter()
        metrics = self._evaluator.evaluate(self._context.learner.policy_weights())
        if metrics is None:
            heartbeat.current.stop_agreed = True
            return None
        return {**metrics, "eval_time_s": time.perf_counter() - began}

    def _is_due(self, result: IterationResult) -> bool:
        """Decide by what all ranks know alike; a training that was asked to stop is not evaluated any more."""
        context = self._context
        is_planned_end = result.iteration >= context.last_iteration or context.find_met(result.metrics) is not None
        return is_planned_end or (not result.is_last and result.iteration % context.config.run.eval_interval == 0)
