"""Which places of a job take part in its next start, after failures; pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mjtrain.launcher.planning.places import Place, leave_out, list_places, name_host, name_place
from mjtrain.launcher.planning.plan import LaunchPlan

FAILURES_AT_A_PLACE = 2
"""So many failures at one place, with nothing saved between them, and the place is left out."""


class TooFewLeftError(Exception):
    """The places that are left are fewer than --min-ranks or --min-hosts asks for; the message says so."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is different about the next start of a job."""

    left_out: tuple[str, ...] = ()
    """Places and hosts that are left out from now on, each with the reason; in words."""

    num_ranks: int
    """Ranks of the next start."""

    num_places: int
    """Ranks of the job while nothing is left out."""


class Membership:
    """The places of one job. Nothing is left out unless --min-ranks or --min-hosts allows it."""

    def __init__(self, plan: LaunchPlan) -> None:
        """Begin with all places.

        Args:
            plan: As it was resolved.
        """
        self._full = plan
        self._elastic = plan.min_ranks is not None or plan.min_hosts is not None
        self._places = list_places(plan)
        self._out: set[Place] = set()
        self._failures: Counter[Place] = Counter()
        self._progress: int | None = None

    @property
    def plan(self) -> LaunchPlan:
        """The plan of the job as it is now."""
        return leave_out(self._full, self._out)

    @property
    def present(self) -> tuple[Place, ...]:
        """The places that take part, by rank."""
        return tuple(place for place in self._places if place not in self._out)

    def after_failure(self, rank: int | None, lost_nodes: Sequence[int], progress: int) -> Change:
        """Decide which places take part in the next start.

        Args:
            rank: Which rank failed, in the job as it is now; None where it was something else.
            lost_nodes: Hosts that are gone, by their index in the job as it is now.
            progress: How much of the work is saved; it does not become less.

        Returns:
            What is different in the next start.

        Raises:
            TooFewLeftError: It would have too few ranks or hosts.
        """
        if progress != self._progress:
            self._failures.clear()
        self._progress = progress
        if not self._elastic:
            return self._change([])
        present = self.present
        nodes = list(dict.fromkeys(place.node for place in present))
        lost = [nodes[index] for index in lost_nodes]
        out = {place for place in present if place.node in lost}
        reasons = [f"{name_host(self._full, node)}: it is lost" for node in lost]
        if rank is not None and present[rank] not in out:
            place = present[rank]
            self._failures[place] += 1
            if self._failures[place] >= FAILURES_AT_A_PLACE:
                out.add(place)
                how = "it failed twice, and nothing was saved between"
                reasons.append(f"{name_place(self._full, place)} (rank {rank}): {how}")
        self._check_left([place for place in present if place not in out], reasons)
        self._out |= out
        return self._change(reasons)

    def _change(self, reasons: list[str]) -> Change:
        return Change(left_out=tuple(reasons), num_ranks=len(self.present), num_places=len(self._places))

    def _check_left(self, left: list[Place], reasons: list[str]) -> None:
        num_hosts = len({place.node for place in left})
        for flag, least, count, unit in (
            ("--min-ranks", self._full.min_ranks, len(left), "rank"),
            ("--min-hosts", self._full.min_hosts, num_hosts, "host"),
        ):
            if count < (least or 1):
                some = "no" if count == 0 else str(count)
                raise TooFewLeftError(
                    f"without {'; '.join(reasons)}; {some} {unit}{'' if count == 1 else 's'} would be left, and "
                    f"{flag} is {least or 1}"
                )
