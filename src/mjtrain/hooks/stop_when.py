"""The early end of a training by its metrics."""

from mjtrain.hooks.base import Hook, Session
from mjtrain.learner import IterationResult
from mjtrain.metric_rules import parse_stop_condition


class StopWhenHook(Hook):
    """Ends the training with the first iteration that meets a condition of --stop-when."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._conditions = [parse_stop_condition(text) for text in session.config.run.stop_when]

    def after_iteration(self, result: IterationResult) -> None:
        """Compare, unless the training ends here anyway; all ranks have the same metrics, so all of them end."""
        if result.is_last:
            return
        for condition in self._conditions:
            if condition.is_met(result.metrics):
                result.is_last = True
                value = result.metrics[condition.metric]
                self._session.ended_by = f"--stop-when {condition}: {value:g} after {result.iteration} iterations"
                return

    def finish(self) -> None:
        """Say why the training ends here."""
        if self._session.ended_by is not None and self._session.report is not None:
            self._session.report.tell(f"ends as planned by {self._session.ended_by}")
