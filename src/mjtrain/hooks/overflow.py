"""Buffers of the physics engine that had no room for all contacts."""

import torch

from mjtrain.env.env import Env
from mjtrain.evaluation.over_ranks import sum_over_ranks
from mjtrain.hooks.base import Hook, Session
from mjtrain.learner import IterationResult

_MARGIN = 1.25
"""How much more room is proposed than was asked for: where some was missing, not all that was needed was asked for."""


class OverflowHook(Hook):
    """Warns once of each buffer of the engine that was too small, and names the setting that would have fitted."""

    def __init__(self, session: Session) -> None:
        self._context = session.context
        self._report = session.report
        self._device = session.env.device
        self._buffers = dict(session.env.engine.buffers) if isinstance(session.env, Env) else {}

    def after_iteration(self, result: IterationResult) -> None:
        """Warn, if it is due; collective when some rank had no room, which all know from the metrics."""
        for name, buffer in list(self._buffers.items()):
            num_worlds = result.metrics[f"overflow/{name}"]
            if not num_worlds:
                continue
            del self._buffers[name]
            by_rank = torch.zeros(self._context.world_size, device=self._device)
            by_rank[self._context.rank] = buffer.find_need()
            need = int(sum_over_ranks(by_rank, self._context).max())
            room = 8 * max(1, -int(-need * _MARGIN // 8))
            if self._report is not None:
                self._report.warn(
                    f"{buffer.setting} {buffer.size}: in iteration {result.iteration} there was no room for all "
                    f"{name} of {num_worlds} worlds, and the physics goes on without the rest; up to {need} per world "
                    f"were asked for, so {buffer.setting} {room} should do"
                )
