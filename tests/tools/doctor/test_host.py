"""What the figures of hosts and ranks mean, without the machine that has them."""

import json
from typing import Any

import pytest

from mjtrain.cli.doctor import format_advice, format_finding, to_plain
from mjtrain.config import LaunchConfig, from_plain
from mjtrain.config import to_plain as config_to_plain
from mjtrain.launcher.failure import Failure
from mjtrain.tools.doctor.finding import Finding, Question, failure, ok, warning
from mjtrain.tools.doctor.host import (
    check_cores,
    check_descriptors,
    check_locked_memory,
    check_memory,
    check_versions,
    compare_versions,
    count_ranks,
)
from mjtrain.tools.doctor.ranks import explain, judge_ranks

GB = 10**9


@pytest.mark.parametrize(
    ("limit", "num_ranks", "world_size", "result"),
    [
        (20, 2, 2, "failure"),  # measured: trainings of these sizes end with an error
        (24, 2, 2, "warning"),  # and run
        (30, 4, 4, "failure"),
        (36, 4, 4, "warning"),
        (1024, 2, 2, "ok"),
        (1024, 8, 1024, "failure"),
        (-1, 8, 1024, "ok"),
    ],
)
def test_descriptors(limit: int, num_ranks: int, world_size: int, result: str) -> None:
    assert check_descriptors(limit, num_ranks, world_size).result == result


@pytest.mark.parametrize(
    ("usable", "quota", "num_ranks", "num_threads", "advice"),
    [
        (8, None, 2, None, ""),
        (8, None, 8, 1, ""),
        (8, None, 9, None, "start at most 8 ranks here"),
        (8, 2.0, 1, None, ""),  # train divides the quota by itself
        (8, 2.0, 1, 8, "give --num-threads 2:"),
        (4, 0.5, 1, None, ""),
        (8, 2.0, 4, None, "start at most 2 ranks here"),
        (8, None, 2, 8, "give --num-threads 4:"),
    ],
)
def test_cores(usable: int, quota: float | None, num_ranks: int, num_threads: int | None, advice: str) -> None:
    found = check_cores(usable, quota, num_ranks, num_threads)
    assert found.advice.startswith(advice)
    assert found.result == ("warning" if advice else "ok")


@pytest.mark.parametrize(
    ("free", "address_space", "result"),
    [(64 * GB, -1, "ok"), (3 * GB, -1, "warning"), (2 * GB, -1, "failure"), (64 * GB, 3 * GB, "failure")],
)
def test_memory_of_two_ranks(free: int, address_space: int, result: str) -> None:
    assert check_memory(free, address_space, 2).result == result


def test_locked_memory_matters_with_infiniband_only() -> None:
    assert check_locked_memory(8 << 20, uses_infiniband=False).result == "ok"
    assert check_locked_memory(8 << 20, uses_infiniband=True).advice.startswith("`ulimit -l unlimited`")
    assert check_locked_memory(-1, uses_infiniband=True).result == "ok"


def test_ranks_of_a_host_are_counted_without_its_driver() -> None:
    assert count_ranks("all", {}, 8) == 8
    assert count_ranks("all", {"CUDA_VISIBLE_DEVICES": "2,3"}, 8) == 2
    assert [count_ranks(ids, {}, 8) for ids in ((0, 3), "auto", None)] == [2, 1, 1]


def test_a_question_survives_its_way_as_json() -> None:
    launch = LaunchConfig(gpu_ids=(0, 1), hostnames=("zeta", "alpha:2"))
    question = Question(launch=launch, log_root="/logs", skip=("gpus",), listens_at=("zeta", 5555))
    assert from_plain(Question, json.loads(json.dumps(config_to_plain(question)))) == question


def describe(host: str, **packages: str | None) -> dict[str, Any]:
    needed = (
        "mjtrain",
        "torch",
        "torchrunx",
        "rsl-rl-lib",
        "tensordict",
        "mujoco",
        "mujoco-warp",
        "warp-lang",
        "numpy",
    )
    versions = {**dict.fromkeys(needed, "1.0"), "skrl": None, **packages}
    return {"host": host, "python": "3.11.7", "prefix": "/env", "packages": versions}


def test_versions() -> None:
    first = describe("a")
    assert [one.result for one in check_versions(first)] == ["ok", "ok"]
    assert check_versions(describe("a", torch=None))[1].figure == "torch missing"
    assert compare_versions(describe("b"), first) == []
    (other,) = compare_versions(describe("b", torch="2.0", skrl="1.4"), first)
    assert (other.figure, other.place) == ("torch 2.0, and 1.0; skrl 1.4, and none on a", "b")
    assert other.advice == "install the same on every host, into /env: pip install torch==1.0"
    (only,) = compare_versions(describe("b", skrl="1.4"), first)
    assert only.advice == "install the same on every host: pip uninstall skrl"
    (python,) = compare_versions({**first, "host": "b", "python": "3.12.0"}, first)
    assert (python.check, python.advice) == ("python", "use Python 3.11.7 on every host, at the same path (/env)")


def measurements(**changes: Any) -> dict[str, Any]:
    """What two ranks on hosts a and b measure, all of it good."""
    rank = {"local_rank": 0, "device": "cpu", "torch": "2.15.0", "cuda": None, "interface": "eth0"}
    ranks = [{**rank, "rank": index, "node_rank": index, "host": host} for index, host in enumerate("ab")]
    good = {
        "ranks": ranks,
        "all_reduce": [{"latency_s": 1e-4, "large_s": 0.01}] * 2,
        "links": {1: {"latency_s": 2e-4, "large_s": 0.02}},
        "clocks": [1000.0, 1000.01],
        "seen": [[0, 1], [0, 1]],
    }
    return good | changes


def judge(**changes: Any) -> dict[str, Finding]:
    findings = judge_ranks(measurements(**changes), backend="gloo")
    return {one.check: one for one in findings if one.result != "ok"}


def test_measurements_of_ranks() -> None:
    assert judge() == {}
    slow = judge(all_reduce=[{"latency_s": 1e-4, "large_s": 0.01}, {"latency_s": 0.02, "large_s": 0.05}])
    assert slow["all-reduce"].figure == "20.00 ms for a number, 50.00 ms for 4.2 MB (84 MB/s), over eth0"
    thin = judge(links={1: {"latency_s": 1e-4, "large_s": 2.0}})
    assert (thin["link"].place, thin["link"].result) == ("b", "warning")
    assert judge(clocks=[1000.0, 940.0])["clock"].figure == "60.0 s behind a"
    unshared = judge(seen=[[0, 1], [1]])
    assert (unshared["shared folder"].place, unshared["shared folder"].figure[:10]) == ("b", "files of a")
    ranks = measurements()["ranks"]
    other = judge(ranks=[ranks[0], {**ranks[1], "torch": "2.14.0"}])
    assert (other["packages"].result, other["packages"].place) == ("failure", "b")


@pytest.mark.parametrize(
    ("summary", "advice"),
    [
        ("RuntimeError: Unable to find address for: eth7", "give --interface one that this host has"),
        ("ConnectionError: cannot listen at a:5555: Address already in use", "set MASTER_PORT to a free port"),
        ("ConnectionError: rank 0 at 10.0.0.1:4711 cannot be reached within 60 s", "open the port between the hosts"),
        ("ConnectionError: node 1 of 2 did not connect to a:5555 within 60 s", "look at what doctor says on the hosts"),
        ("was killed by SIGKILL", "it may have been killed by the kernel's OOM killer"),
        ("something new", "docs/reliability.md says what the message means"),
    ],
)
def test_a_failed_start_has_its_advice(summary: str, advice: str) -> None:
    error = Failure(summary=summary, rank=1, host="b", phase="start").to_error()
    found = explain(error)
    assert found.figure == f"rank 1 on host b in phase start: {summary}"
    assert found.advice.startswith(advice)


def test_the_report() -> None:
    findings = [
        ok("python", "3.11").at("a"),
        warning("clock", "60.0 s", "use NTP").at("b"),
        failure("ranks", "no", "go"),
    ]
    assert format_finding(findings[1]) == "clock         b            warning     60.0 s"
    assert format_advice(findings) == [
        "failure: ranks: go",
        "warning: clock on b: use NTP",
        "1 failure, 1 warning: a run would fail",
    ]
    assert format_advice(findings[:2])[-1] == "1 warning: a run works"
    assert format_advice(findings[:1]) == ["nothing is wrong"]
    plain = to_plain(findings)
    assert plain["would_fail"] is True
    assert [Finding(**one) for one in plain["findings"]] == findings
