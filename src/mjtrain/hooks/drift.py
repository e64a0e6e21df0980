"""Whether the ranks still hold the same networks."""

from mjtrain import heartbeat
from mjtrain.hooks.base import Hook, Session
from mjtrain.hooks.checkpoints import is_save_due
from mjtrain.learner import IterationResult


class DriftHook(Hook):
    """Compares the ranks now and then, and before each save: a checkpoint of ranks that differ is never written."""

    def __init__(self, session: Session) -> None:
        self._interval = session.config.run.drift_check_interval
        self._save_interval = session.config.agent.save_interval
        self._learner = session.learner

    def after_iteration(self, result: IterationResult) -> None:
        """Compare, if it is due; collective.

        Raises:
            RuntimeError: The ranks differ.
        """
        if not self._interval:
            return
        is_before_save = is_save_due(result, self._save_interval)
        if is_before_save:
            heartbeat.beat("save")
        if is_before_save or result.iteration % self._interval == 0:
            self._learner.check_drift()
