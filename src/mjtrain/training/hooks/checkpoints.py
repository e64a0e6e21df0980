"""Checkpoints, and their uploads."""

from pathlib import Path

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
from mjtrain.runtime.files import describe_absence
from mjtrain.training.hooks.base import Hook, HookContext
from mjtrain.training.metric_rules import find_ranking
from mjtrain.training.reporting.report import RunReport


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
            RuntimeError: The last iteration could not be saved.
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
            RuntimeError: The last checkpoint, or the best one, is not in the storage, and no signal ended the run.
        """
        if self._uploader is None:
            return
        self._tell(self._uploader.flush(self._context.config.run.checkpoint_flush_s))
        goes_on = heartbeat.current.stop_agreed or self._context.is_paused  # what starts it again uploads it
        if self._uploader.missing is not None and not goes_on:
            raise RuntimeError(self._uploader.missing)

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
            raise RuntimeError(f"{problem}; iteration {self._context.learner.iteration} is not saved") from error

    def _tell(self, events: list[UploadEvent]) -> None:
        assert self._context.report is not None
        for event in events:
            self._context.report.add_event(event.event, event.line, event.fields)
