"""Which places of a job take part in its next start, after failures; pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mjtrain.launcher.planning.places import leave_out, list_places, name_host, name_place
from mjtrain.launcher.planning.plan import LaunchPlan, Place

FAILURES_AT_A_PLACE = 2
"""A slot is excluded after this many failures without a checkpoint in between."""


class TooFewLeftError(Exception):
    """The places that are left are fewer than --min-ranks or --min-hosts asks for; the message says so."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is different about the next start of a job."""

    left_out: tuple[str, ...] = ()
    """Places and hosts that are left out from now on, each with the reason; in words."""

    taken_in: tuple[str, ...] = ()
    """Hosts that were lost and take part again, in words."""

    num_ranks: int
    num_places: int
    """Ranks of the job while nothing is left out."""

    @property
    def news(self) -> str:
        """Without whom the job continues, and with whom again; empty if nobody left or returned."""
        news = [f"without {'; '.join(self.left_out)}"] if self.left_out else []
        return ", ".join(news + ([f"with {', '.join(self.taken_in)} again"] if self.taken_in else []))

    @property
    def planned_cause(self) -> str:
        """Why a job is started again without a failure."""
        cause = "hosts came back" if self.news else "hosts came back and were lost again"
        return f"{cause} (--rejoin-at-save)"


class Membership:
    """The places of one job. Nothing is left out unless --min-ranks or --min-hosts allows it."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._full = plan
        self._elastic = plan.min_ranks is not None or plan.min_hosts is not None
        self._places = list_places(plan)
        self._sick: set[Place] = set()
        self._lost: set[int] = set()
        self._failures: Counter[Place] = Counter()
        self._progress: int | None = None

    @property
    def plan(self) -> LaunchPlan:
        """The plan of the job as it is now."""
        present = self.present
        return leave_out(self._full, [place for place in self._places if place not in present])

    @property
    def present(self) -> tuple[Place, ...]:
        """The places that take part, by rank."""
        return tuple(place for place in self._places if place not in self._sick and place.node not in self._lost)

    @property
    def lost(self) -> tuple[int, ...]:
        """The hosts that are left out because they were lost, by their index among all hosts."""
        return tuple(sorted(self._lost))

    def after_failure(
        self, rank: int | None, lost_nodes: Sequence[int], progress: int, returned: Sequence[int] = ()
    ) -> Change:
        """Decide which places take part in the next start.

        A failure of a rank while hosts are lost is not held against its place: it may only miss them. A place that the
        job cannot do without takes part again, however often it has failed: --max-restarts says when that is enough.

        Args:
            lost_nodes: Hosts that are gone, by their index in the job as it is now.
            progress: How much of the work is saved; it does not become less.
            returned: Hosts that were lost before and are there again, by their index among all hosts.

        Raises:
            TooFewLeftError: Hosts are lost, and it would have too few ranks or hosts.
        """
        if progress != self._progress:
            self._failures.clear()
        self._progress = progress
        if not self._elastic:
            return self._change([], [])
        present = self.present
        nodes = list(dict.fromkeys(place.node for place in present))
        lost = [nodes[index] for index in lost_nodes]
        reasons = [f"{name_host(self._full, node) or 'this host'}: it is lost" for node in lost]
        if rank is not None and not lost:
            place = present[rank]
            self._failures[place] += 1
            others = [other for other in present if other != place]
            if self._failures[place] >= FAILURES_AT_A_PLACE and not self._find_shortage(others):
                self._sick.add(place)
                how = "it failed twice, and nothing was saved between"
                reasons.append(f"{name_place(self._full, place)} (rank {rank}): {how}")
        self._lost = (self._lost - set(returned)) | set(lost)
        if shortage := self._find_shortage(self.present):
            raise TooFewLeftError(f"without {'; '.join(reasons)}; {shortage}")
        return self._change(reasons, [name_host(self._full, node) for node in returned])

    def take_in(self, returned: Sequence[int]) -> Change:
        """Decide which places take part in a planned start."""
        self._lost -= set(returned)
        return self._change([], [name_host(self._full, node) for node in returned])

    def _change(self, left_out: list[str], taken_in: list[str]) -> Change:
        return Change(
            left_out=tuple(left_out),
            taken_in=tuple(taken_in),
            num_ranks=len(self.present),
            num_places=len(self._places),
        )

    def _find_shortage(self, left: Sequence[Place]) -> str:
        """Say what a job with these places lacks; empty if nothing."""
        num_hosts = len({place.node for place in left})
        for flag, least, count, unit in (
            ("--min-ranks", self._full.min_ranks, len(left), "rank"),
            ("--min-hosts", self._full.min_hosts, num_hosts, "host"),
        ):
            if count < (least or 1):
                some = "no" if count == 0 else str(count)
                return f"{some} {unit}{'' if count == 1 else 's'} would be left, and {flag} is {least or 1}"
        if self._full.mode == "node" and all(place.node != 0 for place in left):
            return "node 0, which runs the launcher of the job, has no rank left"
        return ""
