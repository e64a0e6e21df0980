"""How long a rank may go without progress in a phase, by what this run has shown; pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from mjtrain.heartbeat import Durations

LEAST_COUNT = 10
"""A phase that came fewer times has not shown what it is like: the first iterations load, compile and allocate."""

MULTIPLE_IDLE, MULTIPLE_BUSY = 5, 10
"""The limit is so many times the slowest time of the whole phase, although one that works makes progress within."""

REGULAR = ("rollout", "update")
"""Phases that only compute. The others write files, or wait for services, which may be slow for once."""

PATIENCE = 20
"""How many times the floor it is at least where a limit is for phases that are not regular, or for a busy process."""


@dataclass(frozen=True, kw_only=True)
class PhaseLimits:
    """The limits of one rank.

    A process that is idle, although it does not wait for other ranks, hangs: a machine that is suddenly busy cannot
    explain it. One that is busy may compile, or share its processor with others, so it gets more time.
    """

    floor_s: float | None
    """Shortest limit that is learned, in seconds; None learns nothing."""

    ceiling_s: float
    """The limit where nothing is learned, in seconds."""

    def find(self, phase: str, durations: Mapping[str, Durations], *, idle: bool) -> float | None:
        """Return how long a rank may go without progress, in seconds; None where only the ceiling holds.

        Args:
            phase: What the rank does.
            durations: How long its phases have taken so far.
            idle: Whether the limit is for a process that is idle.
        """
        shown = durations.get(phase)
        if self.floor_s is None or shown is None or shown.count < LEAST_COUNT:
            return None
        floor_s = self.floor_s if idle and phase in REGULAR else PATIENCE * self.floor_s
        limit_s = max(floor_s, (MULTIPLE_IDLE if idle else MULTIPLE_BUSY) * shown.slowest_s)
        return limit_s if limit_s < self.ceiling_s else None


def explain_limit(phase: str, durations: Mapping[str, Durations], *, limit_s: float, phase_s: float) -> str:
    """Say in words why a rank hangs that went without progress for longer than a limit that was learned.

    Args:
        phase: What the rank does.
        durations: How long its phases have taken so far.
        limit_s: The limit, in seconds.
        phase_s: How long the phase has taken now, in seconds.
    """
    shown = durations[phase]
    usual_s = shown.total_s / shown.count
    return (
        f"no progress for {limit_s:.3g} s: phase {phase} has taken {phase_s:.3g} s, usually {usual_s:.2g} s and never "
        f"more than {shown.slowest_s:.2g} s (limit {limit_s:.3g} s; --heartbeat-floor-s)"
    )
