"""The places of a job: which of them take part in its next start after failures, and the plan without the others; pure.

A place is a GPU or, on the CPU, a worker of a host. It keeps its name as long as the job lives, however ranks are
numbered: with a place left out, the ranks of the others are numbered again from 0.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mjtrain.launcher.planning.external import ExternalNode
from mjtrain.launcher.planning.plan import HostPlan, LaunchPlan, Place
from mjtrain.runtime.rank import RankContext

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


def list_places(plan: LaunchPlan) -> tuple[Place, ...]:
    """Return all places of a whole job, by rank."""
    if plan.places is not None:
        return plan.places
    if isinstance(plan.external, ExternalNode):
        return tuple(Place(node, slot) for node in range(plan.external.num_nodes) for slot in range(len(plan.ranks)))
    return tuple(Place(rank.node_rank, rank.local_rank) for rank in plan.ranks)


def name_place(plan: LaunchPlan, place: Place) -> str:
    """Name a place in words: which GPU or worker, and of which host if there are several."""
    gpus = plan.hosts[place.node].gpus if plan.hosts else plan.gpus
    if plan.mode == "node" and gpus:  # the GPUs of other nodes may have other names
        what = f"GPU {place.slot}"
    else:
        what = f"GPU {gpus[place.slot]}" if gpus else f"worker {place.slot}"
    host = name_host(plan, place.node)
    return f"{what} of {host}" if host else what


def name_host(plan: LaunchPlan, node: int) -> str:
    """Name a host in words; empty if there is only one."""
    if plan.hosts:
        return f"host {plan.hosts[node].name}"
    return f"node {node}" if plan.mode == "node" else ""


def leave_out(plan: LaunchPlan, places: Collection[Place]) -> LaunchPlan:
    """Return the plan of a job without some, not all, of its places: that of a job of this size from the start.

    Of a job whose nodes something else has started it is the part of the same node, see `part_of_node`.
    """
    if not places:
        return plan
    left = [place for place in list_places(plan) if place not in places]
    names = tuple(name_place(plan, place) for place in sorted(places))
    if plan.mode == "node":
        return part_of_node(plan, left, plan.ranks[0].node_rank, names)
    nodes = list(dict.fromkeys(place.node for place in left))
    slots = {node: [place.slot for place in left if place.node == node] for node in nodes}
    ranks = tuple(
        rank
        for node in nodes
        for rank in _number(plan, left, node, names, plan.hosts[node].num_cores if plan.hosts else plan.num_cores)
    )
    if plan.hosts:
        num_threads = {rank.node_rank: rank.num_threads for rank in ranks}
        hosts = tuple(
            replace(plan.hosts[node], **_keep_slots(plan.hosts[node], slots[node], num_threads[index]))
            for index, node in enumerate(nodes)
        )
        return _with_ranks(plan, ranks, hosts=hosts, master=(hosts[0].address, 0))
    return _with_ranks(plan, ranks, **_keep_slots(plan, slots[nodes[0]], ranks[0].num_threads))


def part_of_node(plan: LaunchPlan, left: Sequence[Place], node: int, left_out: tuple[str, ...]) -> LaunchPlan:
    """Return one node's part of a job whose nodes something else has started."""
    ranks = _number(plan, left, node, left_out, plan.num_cores)
    slots = [place.slot for place in left if place.node == node]
    return _with_ranks(plan, ranks, places=tuple(left), **_keep_slots(plan, slots, ranks[0].num_threads))


def _number(
    plan: LaunchPlan, left: Sequence[Place], node: int, left_out: tuple[str, ...], num_cores: int | None
) -> tuple[RankContext, ...]:
    """Number the ranks of a host as in a job that never had other places."""
    first = next(index for index, place in enumerate(left) if place.node == node)
    count = sum(place.node == node for place in left)
    nodes = list(dict.fromkeys(place.node for place in left))
    model = next((rank for rank in plan.ranks if rank.node_rank == node), plan.ranks[0])
    seed = model.seed - model.rank
    return tuple(
        replace(
            model,
            rank=rank,
            local_rank=rank - first,
            world_size=len(left),
            local_world_size=count,
            node_rank=nodes.index(node),
            seed=seed + rank,
            num_threads=model.num_threads if num_cores is None else max(1, num_cores // count),
            left_out=left_out,
        )
        for rank in range(first, first + count)
    )


def _keep_slots(host: HostPlan | LaunchPlan, slots: Sequence[int], num_threads: int) -> dict[str, Any]:
    """Return the fields of a host's plan that name its GPUs, with these slots only."""
    gpus = tuple(host.gpus[slot] for slot in slots) if host.gpus else ()
    environ = {**host.environ, "CUDA_VISIBLE_DEVICES": ",".join(gpus), "OMP_NUM_THREADS": str(num_threads)}
    return {"gpus": gpus, "environ": environ}


def _with_ranks(plan: LaunchPlan, ranks: tuple[RankContext, ...], **fields: Any) -> LaunchPlan:
    backend = plan.backend if ranks[0].world_size > 1 else None
    return replace(plan, ranks=ranks, backend=backend, **fields)
