"""Metrics and progress."""

from mjtrain.hooks.base import Hook, Session
from mjtrain.learner import IterationResult


class ReportHook(Hook):
    """Hands each iteration's metrics to the report, on the main rank."""

    def __init__(self, session: Session) -> None:
        self._report = session.report

    def after_iteration(self, result: IterationResult) -> None:
        """Report the metrics, then the videos that were done meanwhile."""
        if self._report is not None:
            self._report.update(result.metrics)

    def finish(self) -> None:
        """Report the last videos."""
        if self._report is not None:
            self._report.flush_videos()
