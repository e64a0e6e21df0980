"""What happens after each iteration of a training. A new hook is a class here and a line in `make_hooks`."""

from collections.abc import Iterator

from mjtrain.training.hooks.after_iteration import (
    BestHook,
    CheckpointHook,
    DriftHook,
    EvaluationHook,
    LossNameHook,
    NanHook,
    OverflowHook,
    ReportHook,
    StopWhenHook,
    WarningHook,
)
from mjtrain.training.hooks.base import Hook, HookContext
from mjtrain.training.metric_rules import find_ranking

__all__ = ["Hook", "HookContext", "make_hooks"]


def make_hooks(context: HookContext) -> Iterator[Hook]:
    """Yield what is called after each iteration, in this order on every rank.

    The evaluation, the drift check and the checkpoint are collective, and the ranks are compared before anything is
    saved. What adds metrics comes before what reads them, and that before the report. The profile comes last, as it
    measures from its call to the next. Only rank 0 has a report, and hooks that use nothing else.
    """
    run, report = context.config.run, context.report
    if report is not None and run.video:
        from mjtrain.training.hooks.video import VideoHook  # only where videos are drawn

        yield VideoHook(context, report)
    if run.eval_interval:
        yield EvaluationHook(context)
    yield StopWhenHook(context)
    if (ranking := find_ranking(run)) is not None:
        yield BestHook(context, ranking)
    for make_hook in (ReportHook, LossNameHook, NanHook, WarningHook, OverflowHook, DriftHook, CheckpointHook):
        yield make_hook(context)
    if report is not None and run.profile is not None:
        from mjtrain.training.hooks.profile import ProfileHook  # only where it is asked for

        yield ProfileHook(context, report, run.profile)
