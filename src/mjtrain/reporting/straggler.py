"""Warn of a rank that is steadily slower than the others."""

import statistics
from typing import Any

SLOWER = 1.2
"""A rank is slow if its busy time exceeds the median of the other ranks by this factor."""

STEADY_ITERATIONS = 10
"""Consecutive slow iterations after which there is a warning."""


class StragglerWatch:
    """Notices when one rank is steadily slower than the others."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._times: list[tuple[float, float]] = []

    def update(self, metrics: dict[str, Any]) -> str | None:
        """Add one iteration; return a warning, once for each time that a rank becomes steadily slow."""
        busy_s = metrics.get("busy_time_by_rank_s")
        if busy_s is None:
            return None
        rank = metrics["slowest_rank"]
        others_s = statistics.median(time_s for index, time_s in enumerate(busy_s) if index != rank)
        if busy_s[rank] <= SLOWER * others_s:
            self._rank, self._times = None, []
            return None
        if rank != self._rank:
            self._rank, self._times = rank, []
        self._times.append((busy_s[rank], others_s))
        if len(self._times) != STEADY_ITERATIONS:
            return None
        slow_s, median_s = (statistics.mean(times) for times in zip(*self._times, strict=True))
        return (
            f"rank {rank} is steadily slower than the others: {slow_s:.3f} s of work per iteration against "
            f"{median_s:.3f} s; they wait for it"
        )
