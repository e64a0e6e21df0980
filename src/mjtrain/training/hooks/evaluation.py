"""Evaluation of the policy while it trains."""

import time
from typing import Any

from mjtrain.evaluation.evaluator import Evaluator
from mjtrain.learning.learner import IterationResult
from mjtrain.runtime import heartbeat
from mjtrain.training.hooks.base import Hook, HookContext


class EvaluationHook(Hook):
    """Measures the policy every --eval-interval iterations and after the last one, and adds eval/* to the metrics.

    A request to stop ends an evaluation, without numbers, and the training. A resumed training makes up for it.
    """

    def __init__(self, context: HookContext) -> None:
        """Build the worlds of the evaluation, on every rank."""
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
