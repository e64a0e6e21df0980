"""What happens after each iteration of a training. A new hook is a module here and a line in `HOOKS`."""

from collections.abc import Callable

from mjtrain.hooks.base import Hook, Session
from mjtrain.hooks.checkpoints import CheckpointHook
from mjtrain.hooks.drift import DriftHook
from mjtrain.hooks.nan import NanHook
from mjtrain.hooks.report import ReportHook

__all__ = ["HOOKS", "Hook", "Session"]


def _make_video_hook(session: Session) -> Hook:
    if session.report is None or not session.config.run.video:
        return Hook()
    from mjtrain.hooks.video import VideoHook  # only where videos are drawn

    return VideoHook(session, session.report)


HOOKS: tuple[Callable[[Session], Hook], ...] = (_make_video_hook, ReportHook, NanHook, DriftHook, CheckpointHook)
"""What is called after each iteration, in this order on every rank.

The drift check and the checkpoint are collective, and the ranks are compared before anything is saved. What adds
metrics comes before the report.
"""
