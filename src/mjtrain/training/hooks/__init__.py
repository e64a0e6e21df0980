"""What happens after each iteration of a training. A new hook is a module here and a line in `HOOKS`."""

from collections.abc import Callable

from mjtrain.training.hooks.after_iteration import (
    BestHook,
    DriftHook,
    NanHook,
    OverflowHook,
    ReportHook,
    StopWhenHook,
    WarningHook,
)
from mjtrain.training.hooks.base import Hook, HookContext
from mjtrain.training.hooks.checkpoints import CheckpointHook
from mjtrain.training.metric_rules import find_ranking

__all__ = ["HOOKS", "Hook", "HookContext"]


def _make_video_hook(context: HookContext) -> Hook:
    if context.report is None or not context.config.run.video:
        return Hook()
    from mjtrain.training.hooks.video import VideoHook  # only where videos are drawn

    return VideoHook(context, context.report)


def _make_profile_hook(context: HookContext) -> Hook:
    if context.report is None or context.config.run.profile is None:
        return Hook()
    from mjtrain.training.hooks.profile import ProfileHook  # only where it is asked for

    return ProfileHook(context, context.report, context.config.run.profile)


def _make_evaluation_hook(context: HookContext) -> Hook:
    if not context.config.run.eval_interval:
        return Hook()
    from mjtrain.training.hooks.evaluation import EvaluationHook  # only where policies are evaluated

    return EvaluationHook(context)


def _make_best_hook(context: HookContext) -> Hook:
    ranking = find_ranking(context.config.run)
    return Hook() if ranking is None else BestHook(context, ranking)


HOOKS: tuple[Callable[[HookContext], Hook], ...] = (
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
    _make_profile_hook,
)
"""What is called after each iteration, in this order on every rank.

The evaluation, the drift check and the checkpoint are collective, and the ranks are compared before anything is saved.
What adds metrics comes before what reads them, and that before the report. The profile comes last, as it measures from
its call to the next.
"""
