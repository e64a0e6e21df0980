"""Worlds whose state is not finite."""

from mjtrain.env.nan_guard import check_nan_resets
from mjtrain.hooks.base import Hook, Session
from mjtrain.learner import IterationResult


class NanHook(Hook):
    """Dumps the worlds that stopped being finite, and ends the training when too many did."""

    def __init__(self, session: Session) -> None:
        self._env = session.env
        self._config = session.config.env.nan_guard
        self._folder = session.run_dir / "nan"
        self._rank = session.context.rank

    def after_iteration(self, result: IterationResult) -> None:
        """Dump and count.

        Raises:
            FloatingPointError: More than --env.nan-guard.max-fraction of all worlds broke in this iteration.
        """
        if result.metrics["nan_resets"]:
            self._env.dump_broken_worlds(self._folder, f"iteration_{result.iteration}_rank_{self._rank}")
            check_nan_resets(result.metrics, self._config)
