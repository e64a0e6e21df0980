"""What a job continues with after failures: pure decisions, without any process."""

from dataclasses import replace
from typing import Any

import pytest

from mjtrain.config import LaunchConfig
from mjtrain.launcher.planning.membership import Change, Membership, TooFewLeftError, leave_out
from mjtrain.launcher.planning.placement import resolve_plan
from mjtrain.launcher.planning.plan import Host, LaunchPlan, Place

HOSTS = tuple(
    Host(name=name, visible=("0", "1"), num_cores=8, address=f"10.0.0.{index}") for index, name in enumerate("abc")
)


def plan_of(hosts: tuple[Host, ...] = (), gpus: int = 0, **flags: Any) -> LaunchPlan:
    names = tuple(host.name for host in hosts)
    return resolve_plan(LaunchConfig(hostnames=names, **flags), {}, gpus, num_cores=6, hosts=hosts)


def without_words(plan: LaunchPlan) -> LaunchPlan:
    """Return a plan without what only says how it came about."""
    ranks = tuple(replace(rank, left_out=()) for rank in plan.ranks)
    return replace(plan, ranks=ranks, min_ranks=None, min_hosts=None, max_restarts=0)


def test_without_a_place_the_plan_is_that_of_a_job_of_this_size() -> None:
    """Ranks, seeds, threads, devices, variables and the backend, for workers, GPUs and hosts."""
    workers = plan_of(gpu_ids=None, num_workers=3, seed=40)
    assert without_words(leave_out(workers, {Place(0, 0)})) == plan_of(gpu_ids=None, num_workers=2, seed=40)
    gpus = plan_of(gpus=4, gpu_ids="all")
    assert without_words(leave_out(gpus, {Place(0, 1), Place(0, 3)})) == plan_of(gpus=4, gpu_ids=(0, 2))
    hosts = plan_of(HOSTS, gpu_ids="all", max_restarts=2)
    assert without_words(leave_out(hosts, {Place(1, 0), Place(1, 1)})).ranks == plan_of(HOSTS[::2], gpu_ids="all").ranks
    first = leave_out(hosts, {Place(0, 0), Place(0, 1), Place(2, 0)})
    assert ([host.name for host in first.hosts], first.master) == (["b", "c"], ("10.0.0.1", 0))
    assert [(rank.rank, rank.node_rank, rank.local_rank) for rank in first.ranks] == [(0, 0, 0), (1, 0, 1), (2, 1, 0)]
    assert [host.gpus for host in first.hosts] == [("0", "1"), ("1",)]
    assert first.ranks[0].left_out == ("GPU 0 of host a", "GPU 1 of host a", "GPU 0 of host c")
    one = leave_out(plan_of(gpu_ids=None, num_workers=2, max_restarts=1), {Place(0, 0)})
    assert (one.mode, one.backend, one.world_size, one.ranks[0].num_threads) == ("spawn", None, 1, 6)


def test_a_place_is_left_out_when_it_failed_twice_with_nothing_saved_between() -> None:
    membership = Membership(plan_of(gpu_ids=None, num_workers=4, max_restarts=9, min_ranks=2))
    for rank, progress in ((1, 10), (1, 20), (2, 20), (None, 20)):  # a save, another place, and no rank
        assert membership.after_failure(rank, [], progress).left_out == ()
    change = membership.after_failure(1, [], 20)
    assert (change.left_out, change.num_ranks, change.num_places) == (
        ("worker 1 (rank 1): it failed twice, and nothing was saved between",),
        3,
        4,
    )
    # Rank 1 is worker 2 now, which has failed once since the last save.
    assert membership.after_failure(1, [], 20).left_out[0].startswith("worker 2 (rank 1)")
    assert membership.present == (Place(0, 0), Place(0, 3))
    assert membership.after_failure(0, [], 20).num_ranks == 2
    for _ in range(3):  # the job cannot do without it
        assert membership.after_failure(0, [], 20) == Change(num_ranks=2, num_places=4)


def test_without_a_least_nothing_is_left_out() -> None:
    membership = Membership(plan_of(gpu_ids=None, num_workers=2, max_restarts=9))
    assert [membership.after_failure(1, [], 0).num_ranks for _ in range(4)] == [2] * 4


def test_hosts_that_are_lost() -> None:
    membership = Membership(plan_of(HOSTS, gpu_ids="all", max_restarts=9, min_hosts=2))
    assert membership.after_failure(3, [1], 0).left_out == ("host b: it is lost",)
    assert [host.name for host in membership.plan.hosts] == ["a", "c"]
    with pytest.raises(
        TooFewLeftError, match=r"without host c: it is lost; 1 host would be left, and --min-hosts is 2"
    ):
        membership.after_failure(None, [1], 0)
    alone = Membership(plan_of(HOSTS[:1], gpu_ids="all", max_restarts=9, min_ranks=1))
    with pytest.raises(TooFewLeftError, match=r"no ranks would be left, and --min-ranks is 1"):
        alone.after_failure(None, [0], 0)


def test_hosts_that_are_taken_in_without_a_failure() -> None:
    membership = Membership(plan_of(HOSTS, gpu_ids="all", max_restarts=9, min_hosts=1, rejoin_at_save=True))
    membership.after_failure(None, [1, 2], 0)
    change = membership.take_in([2])
    assert (change.left_out, change.taken_in, change.num_ranks, change.num_places) == ((), ("host c",), 4, 6)
    assert ([host.name for host in membership.plan.hosts], membership.lost) == (["a", "c"], (1,))
