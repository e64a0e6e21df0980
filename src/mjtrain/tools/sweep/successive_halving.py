"""ASHA: trials pause at rungs, and the best of each rung continue.

The variant of Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020: a trial that is not among
the best when it arrives can still be promoted later, when others have arrived and are worse. So the first trials are
not trained to their end merely because there is nothing yet to compare them with. Unlike there, no more than the share
of those that have come is promoted in all until the last has come: each of the first few that is better than those
before it would be promoted, and of these most are not good (measured in docs/sweeps.md).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

REDUCTION_FACTOR = 4
"""One of this many trials continues from each rung, and rungs are this factor of iterations apart."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A trial, as far as it matters here."""

    number: int
    """From 0, in the order in which they were begun."""

    curve: dict[int, float]
    """What was reported, by iteration."""

    promotions: int
    """Rungs that it continued from, or may continue from."""

    is_open: bool
    """Whether it has not ended."""

    has_failed: bool = False
    """Whether it failed: then it is not promoted, and does not take the place of others."""


class SuccessiveHalving:
    """Which trials may continue."""

    def __init__(self, first_rung: int, max_iterations: int, *, maximize: bool) -> None:
        """Place the rungs.

        Args:
            first_rung: Iteration of the first one, at least 1.
        """
        rungs: list[int] = []
        while first_rung < max_iterations:
            rungs.append(first_rung)
            first_rung *= REDUCTION_FACTOR
        self.rungs = tuple(rungs)
        self._sign = 1.0 if maximize else -1.0

    def is_waiting(self, contender: Contender) -> bool:
        """Whether a trial has arrived at a rung from which it was not promoted."""
        rung = contender.promotions
        return contender.is_open and rung < len(self.rungs) and self._value_at(contender, rung) is not None

    def find_promotable(self, contenders: Sequence[Contender], *, all_begun: bool) -> list[int]:
        """Return which waiting trials may continue, those of the highest rung first, and of a rung the best first."""
        found: list[int] = []
        for rung in reversed(range(len(self.rungs))):
            is_last = all_begun and not self._is_awaited(contenders, rung)
            best = self._find_best(contenders, rung, is_last=is_last)
            waiting = [other.number for other in best if self.is_waiting(other) and other.promotions == rung]
            if not is_last:
                waiting = waiting[: self._count_free_places(contenders, rung)]
            found += waiting
        return found

    def find_hopeless(self, contenders: Sequence[Contender], *, all_begun: bool) -> list[int]:
        """Return which waiting trials will never be promoted, as nobody else will arrive at their rung."""
        found: list[int] = []
        for rung in range(len(self.rungs)):
            if not all_begun or self._is_awaited(contenders, rung):
                break
            best = self._find_best(contenders, rung, is_last=True)
            waiting = [other for other in contenders if self.is_waiting(other) and other.promotions == rung]
            found += [other.number for other in waiting if other not in best]
            contenders = [other for other in contenders if other.number not in found]
        return found

    def _is_awaited(self, contenders: Sequence[Contender], rung: int) -> bool:
        """Whether a trial that was begun may still arrive at a rung."""
        return any(other.is_open and self._value_at(other, rung) is None for other in contenders)

    def _find_best(self, contenders: Sequence[Contender], rung: int, *, is_last: bool) -> list[Contender]:
        """Return the best at a rung, best first; empty for a small rung while trials are still expected."""
        arrived = [
            (value, other)
            for other in contenders
            if not other.has_failed and (value := self._value_at(other, rung)) is not None
        ]
        arrived.sort(key=lambda pair: (self._order(pair[0]), -pair[1].number), reverse=True)
        keep = max(len(arrived) // REDUCTION_FACTOR, 1 if is_last else 0)
        return [other for _, other in arrived[:keep]]

    def _count_free_places(self, contenders: Sequence[Contender], rung: int) -> int:
        """Return how many may continue from a rung until others arrive: of those that have come, a quarter in all."""
        arrived = [other for other in contenders if self._value_at(other, rung) is not None]
        promoted = sum(other.promotions > rung for other in arrived)
        return max(0, len(arrived) // REDUCTION_FACTOR - promoted)

    def _order(self, value: float) -> float:
        return -math.inf if math.isnan(value) else self._sign * value

    def _value_at(self, contender: Contender, rung: int) -> float | None:
        """Return the first value that was reported at a rung or after it."""
        iterations = [iteration for iteration in contender.curve if iteration >= self.rungs[rung]]
        return contender.curve[min(iterations)] if iterations else None
