"""Where the ranks of a job can run, and the plan of the same job with some of these places left out; pure.

A place is a GPU or, on the CPU, a worker of a host. It keeps its name as long as the job lives, however ranks are
numbered: with a place left out, the ranks of the others are numbered again from 0.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from mjtrain.launcher.planning.external import ExternalNode
from mjtrain.launcher.planning.plan import HostPlan, LaunchPlan, Place
from mjtrain.runtime.rank import RankContext


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
    """Return the plan of a job without some of its places: that of a job of this size from the start.

    Args:
        places: What is left out; at least one place is not.

    Returns:
        The plan. Of a job whose nodes something else has started it is the part of the same node, see `part_of_node`.
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
