"""What happens after each iteration of a training. A new hook is a module here and a line in `HOOKS`."""

from collections.abc import Callable

from mjtrain.training.hooks.base import Hook, Session
from mjtrain.training.hooks.checkpoints import CheckpointHook
from mjtrain.training.hooks.simple import (
    BestHook,
    DriftHook,
    NanHook,
    OverflowHook,
    ReportHook,
    StopWhenHook,
    WarningHook,
)
from mjtrain.training.metric_rules import find_ranking

__all__ = ["HOOKS", "Hook", "Session"]


def _make_video_hook(session: Session) -> Hook:
    if session.report is None or not session.config.run.video:
        return Hook()
    from mjtrain.training.hooks.video import VideoHook  # only where videos are drawn

    return VideoHook(session, session.report)


def _make_evaluation_hook(session: Session) -> Hook:
    if not session.config.run.eval_interval:
        return Hook()
    from mjtrain.training.hooks.evaluation import EvaluationHook  # only where policies are evaluated

    return EvaluationHook(session)


def _make_best_hook(session: Session) -> Hook:
    ranking = find_ranking(session.config.run)
    return Hook() if ranking is None else BestHook(session, ranking)


HOOKS: tuple[Callable[[Session], Hook], ...] = (
    _make_video_hook,
    _make_evaluation_hook,
    StopWhenHook,
    _make_best_hook,
    ReportHook,
    NanHook,
    WarningHook,
    OverflowHook,
    DriftHook,
    CheckpointHook,
)
"""What is called after each iteration, in this order on every rank.

The evaluation, the drift check and the checkpoint are collective, and the ranks are compared before anything is saved.
What adds metrics comes before what reads them, and that before the report.
"""
