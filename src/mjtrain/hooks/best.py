"""Which iterations are saved because they are the best so far."""

import torch

from mjtrain.best_checkpoint import read_best
from mjtrain.evaluation.over_ranks import sum_over_ranks
from mjtrain.hooks.base import Hook, Session
from mjtrain.hooks.checkpoints import is_save_due
from mjtrain.learner import IterationResult
from mjtrain.metric_rules import Ranking


class BestHook(Hook):
    """Marks the iterations that are better than all before, by --best-metric.

    Compared are iterations with an evaluation, and those that are saved anyway.
    """

    def __init__(self, session: Session, ranking: Ranking) -> None:
        """Learn how good the best one was before a resumption; every rank must call it."""
        self._ranking = ranking
        self._save_interval = session.config.agent.save_interval
        self._best = _read_value(session, ranking)

    def after_iteration(self, result: IterationResult) -> None:
        """Compare; all ranks have the same metrics, so all of them save."""
        if not (is_save_due(result, self._save_interval) or "eval/return" in result.metrics):
            return
        value = result.metrics.get(self._ranking.metric)
        if self._ranking.is_better(value, self._best):
            self._best, result.is_best = value, True


def _read_value(session: Session, ranking: Ranking) -> float | None:
    """Return the value of the best checkpoint up to here, which only the main rank may be able to read."""
    best = read_best(session.run_dir) if session.context.is_main else None
    if best is not None and (best.metric != ranking.metric or best.iteration > session.learner.iteration):
        best = None  # by another metric, or of iterations that are repeated now
    found = torch.tensor([0.0, 0.0] if best is None else [1.0, best.value], dtype=torch.float64)
    is_known, value = sum_over_ranks(found.to(session.context.device), session.context).tolist()
    return value if is_known else None
