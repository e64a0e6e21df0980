"""Jobs on three hosts of which some are lost and come back."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from support.cluster import PYTHON, TASK, TORCHRUN, TRAIN, Cluster, Node
from support.jobs import Job
from support.machine import wait_until
from support.multinode_jobs import FLAGS, start

PORT = 23456
ELASTIC = ["--max-restarts", "9", "--min-hosts", "2", "--max-iterations", "1000"]


def read_rows(folder: Path) -> list[dict[str, Any]]:
    (run,) = folder.glob("logs/*/*")
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def wait_for_iterations(job: Job, folder: Path, world_size: int) -> None:
    """Wait for three more iterations, the last of which is done by so many ranks."""
    rows = [row for row in read_rows(folder) if "event" not in row]
    job.wait_for(f"iteration {rows[-1]['iteration'] + 3}/")
    assert [row for row in read_rows(folder) if "event" not in row][-1]["world_size"] == world_size


def check_recovery(folder: Path, since_s: float) -> dict[str, float]:
    """Wait until two ranks continue without a host that was lost by SIGKILL, which a closed connection told them.

    Args:
        folder: Of the job.
        since_s: When the host was lost, in seconds since the epoch.

    Returns:
        Seconds from the loss until the job said so (a file in crash/), and from there to the end of the next iteration.
    """

    def goes_on() -> bool:
        last = read_rows(folder)[-1]
        return last.get("world_size") == 2 and "event" not in last

    wait_until(goes_on, "two ranks continue")
    went_on_s = time.time()
    first = min(folder.glob("logs/*/*/crash/*.txt"), key=lambda path: path.stat().st_mtime)
    noticed_s, cause = first.stat().st_mtime, first.read_text()
    assert re.search("closed|killed|reset", cause), cause
    assert "no message from this host" not in cause  # it is not its silence that was noticed
    return {"noticed after, s": noticed_s - since_s, "continued after, s": went_on_s - noticed_s}


def check_against_jobs_by_hand(folder: Path, cluster: Cluster, sizes: list[int]) -> None:
    """Compare what each start of a job made of the checkpoint that it resumed with what ranks on one host make of it.

    Args:
        folder: Of the job.
        cluster: Where it ran.
        sizes: How many ranks it had after it was first started again, after the second time, and so on.
    """
    (run,) = folder.glob("logs/*/*")
    rows = [row for row in read_rows(folder) if "event" not in row]
    spans = [[row["iteration"] for row in group] for _, group in groupby(rows, key=lambda row: row["world_size"])]
    for size, iterations in zip(sizes, spans[1:], strict=False):
        first, last = iterations[0] - 1, min(iterations[0] + 5, iterations[-1])
        last -= last % 2  # checkpoints are of every second iteration
        assert last > first
        by_hand = folder / "by_hand" / f"{first}_{last}" / run.name
        shutil.copytree(run, by_hand, ignore=shutil.ignore_patterns("model_*.pt", "torchrunx", "crash"))
        shutil.copy(run / f"model_{first}.pt", by_hand)
        more = ["--num-workers", str(size), "--max-iterations", str(last), "--resume", str(by_hand)]
        outcome = start(cluster.nodes[0], folder, PYTHON, *TRAIN, TASK, *FLAGS, *more).finish(since=0.0)
        assert outcome.status == 0, outcome.stderr
        assert (by_hand / f"model_{last}.pt").read_bytes() == (run / f"model_{last}.pt").read_bytes(), (first, last)


def kill_a_rank(folder: Path, node: Node) -> None:
    """Kill a rank, and nothing else of its host."""
    noted = [int(path.stem.partition("_")[2]) for path in (folder / "notes").glob(f"{node.name}_*.json")]
    (rank,) = [pid for pid in noted if Path(f"/proc/{pid}").exists()]
    os.kill(rank, signal.SIGKILL)


def test_hosts_over_ssh(three_hosts: Cluster, tmp_path: Path) -> None:
    """A cable is pulled out and two hosts continue; it is plugged in again and three do; then two lose their power."""
    zeta, mike, alpha = three_hosts.nodes
    command = [PYTHON, *TRAIN, TASK, *FLAGS, "--ssh-config-file", str(three_hosts.ssh_config), *ELASTIC]
    command += ["--host-timeout-s", "15"]
    job = start(zeta, tmp_path, *command, "--hostnames", "zeta", "mike", "alpha", MJTRAIN_TEST_SLOW="0.2")
    job.wait_for("iteration 3/")
    alpha.set_link("down")
    job.wait_for("2 of 3 ranks continue, without host alpha: it is lost", "stderr")
    wait_for_iterations(job, tmp_path, 2)
    alpha.set_link("up")
    kill_a_rank(tmp_path, mike)
    job.wait_for("3 of 3 ranks continue, with host alpha again", "stderr")
    wait_for_iterations(job, tmp_path, 3)
    alpha.kill_all()
    mike.kill_all()
    outcome = job.finish(since=0.0)
    assert outcome.status == 1, outcome.stderr
    assert "without host mike: it is lost; host alpha: it is lost; 1 host would be left, and --min-hosts is 2" in (
        outcome.last_block
    )
    restarts = [row for row in read_rows(tmp_path) if row.get("event") == "restart"]
    assert [(row["world_size"], row["left_out"], row["taken_in"]) for row in restarts] == [
        (2, ["host alpha: it is lost"], []),
        (3, [], ["host alpha"]),
    ]
    assert "on host alpha: no message from this host for 15 s" in restarts[0]["cause"]


def start_node(node: Node, index: int, folder: Path, *flags: str) -> Job:
    place = {"RANK": str(index), "WORLD_SIZE": "3", "MASTER_ADDR": "zeta", "MASTER_PORT": str(PORT)}
    return start(node, folder, PYTHON, *TRAIN, TASK, *FLAGS, *ELASTIC, *flags, **place, MJTRAIN_TEST_SLOW="0.2")


def wait_for_connection(job: Job, node: Node) -> None:
    """Wait until a node's job is connected to node 0, which takes it in when it starts the job again."""

    def is_connected() -> bool:
        assert job.process.poll() is None
        return f":{PORT:04X} 01 " in Path(f"/proc/{node.pid}/net/tcp").read_text()

    wait_until(is_connected, f"{node.name} is connected to node 0")


def test_variables_that_number_nodes(three_hosts: Cluster, tmp_path: Path) -> None:
    """A node loses its power, and two continue; the scheduler starts it again, and it is taken in."""
    zeta, _, alpha = three_hosts.nodes
    first, second, third = [start_node(node, index, tmp_path) for index, node in enumerate(three_hosts.nodes)]
    first.wait_for("iteration 3/")
    alpha.kill_all()
    first.wait_for("2 of 3 ranks continue, without node 2: it is lost", "stderr")
    wait_for_iterations(first, tmp_path, 2)
    third.finish(since=0.0)
    again = start_node(alpha, 2, tmp_path)
    wait_for_connection(again, alpha)
    kill_a_rank(tmp_path, zeta)
    first.wait_for("3 of 3 ranks continue, with node 2 again", "stderr")
    wait_for_iterations(first, tmp_path, 3)
    first.kill(signal.SIGTERM)
    outcomes = [job.finish(since=0.0) for job in (first, second, again)]
    assert [outcome.status for outcome in outcomes] == [143] * 3, outcomes[0].stderr


def start_agent(node: Node, folder: Path) -> Job:
    rendezvous = ["--rdzv_backend=c10d", "--rdzv_endpoint=zeta:29400", "--rdzv_id=x"]
    rendezvous += ["--rdzv_conf=last_call_timeout=15"]  # 30 s by default; two would begin without a third that is late
    flags = ["--nnodes=2:3", "--nproc_per_node=1", *rendezvous, "--max_restarts=9"]
    command = [*TORCHRUN, *flags, *TRAIN, TASK, *FLAGS, "--max-iterations", "1000", "--resume", "auto"]
    return start(node, folder, *command, MJTRAIN_TEST_SLOW="0.2", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")


def wait_for_rows(jobs: list[Job], folder: Path, world_size: int) -> None:
    """Wait for three iterations in a row by so many ranks."""

    def have_done_three() -> bool:
        assert all(job.process.poll() is None for job in jobs)
        rows = read_rows(folder) if list(folder.glob("logs/*/*/metrics.jsonl")) else []
        return [row["world_size"] for row in rows if "event" not in row][-3:] == [world_size] * 3

    wait_until(have_done_three, f"three iterations by {world_size} ranks")


def test_torchrun_with_two_to_three_nodes(
    three_hosts: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A node loses its power: torchrun starts the ranks of the others again, and they resume; then it comes back.

    It is the node of rank 0. (That of the endpoint, zeta, is one that torchrun itself needs.)
    """
    zeta, mike, alpha = three_hosts.nodes
    first, second, third = [start_agent(node, tmp_path) for node in three_hosts.nodes]
    wait_for_rows([first, second, third], tmp_path, 3)
    lost_s = time.time()
    alpha.kill_all()
    record_property("recovery", check_recovery(tmp_path, lost_s))
    wait_for_rows([first, second], tmp_path, 2)
    third.finish(since=0.0)
    again = start_agent(alpha, tmp_path)
    wait_for_rows([first, second, again], tmp_path, 3)
    for job in (again, second, first):
        job.kill(signal.SIGTERM)
    for job in (first, second, again):
        assert job.finish(since=0.0).status != 0
    check_against_jobs_by_hand(tmp_path, three_hosts, [2])
    said = "".join((tmp_path / node.name / "stdout").read_text() for node in (zeta, mike, alpha))
    assert (
        "the checkpoint is of 3 ranks and there are 2 now: environments and random numbers of rank 2 are left out"
        in said
    )
    assert (
        "the checkpoint is of 2 ranks and there are 3 now: environments and random numbers of rank 2 start again"
        in said
    )


def start_over_ssh(cluster: Cluster, folder: Path, *flags: str) -> tuple[Job, list[Job]]:
    command = [PYTHON, *TRAIN, TASK, *FLAGS, "--ssh-config-file", str(cluster.ssh_config), *ELASTIC, *flags]
    hosts = [node.name for node in cluster.nodes]
    return start(cluster.nodes[0], folder, *command, "--hostnames", *hosts, MJTRAIN_TEST_SLOW="0.2"), []


def start_on_each_node(cluster: Cluster, folder: Path, *flags: str) -> tuple[Job, list[Job]]:
    first, *others = [start_node(node, index, folder, *flags) for index, node in enumerate(cluster.nodes)]
    return first, others


@pytest.mark.parametrize(
    ("start_job", "name", "sizes"),
    [(start_over_ssh, "host alpha", [2, 3]), (start_on_each_node, "node 2", [2])],
    ids=["ssh", "variables"],
)
def test_a_host_that_is_back_is_taken_in_at_the_next_save(
    start_job: Callable[..., tuple[Job, list[Job]]],
    name: str,
    sizes: list[int],
    three_hosts: Cluster,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """A host loses its power, and the job continues; it comes back, and nothing else happens: a planned restart.

    No restart is left for that by then. What each size did equals, bit for bit, what ranks on one host do.
    """
    alpha = three_hosts.nodes[2]
    first, others = start_job(three_hosts, tmp_path, "--max-restarts", "1", "--rejoin-at-save")
    first.wait_for("iteration 3/")
    lost_s = time.time()
    alpha.kill_all()
    first.wait_for(f"2 of 3 ranks continue, without {name}: it is lost", "stderr")
    alpha.set_link("down")
    record_property("recovery", check_recovery(tmp_path, lost_s))
    wait_for_iterations(first, tmp_path, 2)
    alpha.set_link("up")
    if others:
        others.pop().finish(since=0.0)
        others.append(start_node(alpha, 2, tmp_path, "--max-restarts", "1", "--rejoin-at-save"))
    first.wait_for("as hosts came back (--rejoin-at-save); it is not counted", "stderr")
    first.wait_for(f"3 of 3 ranks continue, with {name} again", "stderr")
    wait_for_iterations(first, tmp_path, 3)
    first.kill(signal.SIGTERM)
    outcomes = [job.finish(since=0.0) for job in (first, *others)]
    assert {outcome.status for outcome in outcomes} == {143}, outcomes[0].stderr
    failed, planned = [row for row in read_rows(tmp_path) if row.get("event") == "restart"]
    assert (failed["restart"], failed["world_size"], failed["left_out"]) == (1, 2, [f"{name}: it is lost"])
    assert (planned["planned"], planned["world_size"], planned["taken_in"]) == (True, 3, [name])
    assert (planned["lost"], "restart" in planned) == (0, False)
    check_against_jobs_by_hand(tmp_path, three_hosts, sizes)
