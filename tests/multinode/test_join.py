"""Jobs that torchrun starts on one node and on two."""

import json
import re
import signal
from pathlib import Path

import pytest

from mjtrain.env.catalog import load_task
from support.cluster import PYTHON, TASK, TORCHRUN, Cluster
from support.jobs import Job
from support.multinode_jobs import check_run, finish, start, train


@pytest.mark.supports("training", start="torchrun, static", hosts="2")
def test_static_two_nodes_with_two_ranks_each(cluster: Cluster, tmp_path: Path) -> None:
    jobs = [
        start(
            node,
            tmp_path,
            *TORCHRUN,
            *["--nnodes=2", "--nproc_per_node=2", f"--node_rank={index}", "--master_addr=zeta", "--master_port=5555"],
            *train(),
        )
        for index, node in enumerate(cluster.nodes)
    ]
    check_run(tmp_path, finish(jobs), ["zeta", "zeta", "alpha", "alpha"])


@pytest.mark.supports("training", start="torchrun, c10d", hosts="2")
def test_c10d_with_a_restart_resumes_the_run(cluster: Cluster, tmp_path: Path) -> None:
    """The host whose name sorts first is not node 0; rank 0 may be on either, and the run resumes after a failure."""
    jobs = [
        start(
            node,
            tmp_path,
            *TORCHRUN,
            *["--nnodes=2", "--nproc_per_node=1", "--rdzv_backend=c10d", "--rdzv_endpoint=zeta:29400", "--rdzv_id=x"],
            *["--max_restarts=1", *train()],
            MJTRAIN_TEST_FAULT="1:3",
        )
        for node in cluster.nodes
    ]
    outcomes = finish(jobs)
    assert (tmp_path / "fault").exists()
    (run,) = tmp_path.glob("logs/*/*")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(row["event"], row["iteration"], row["lost"]) for row in rows if row.get("event") == "restart"] == [
        ("restart", 2, 0)
    ]
    assert [outcome.status for outcome in outcomes] == [0, 0]
    assert [row["iteration"] for row in rows if "event" not in row] == [1, 2, 3, 4]
    said = "".join(outcome.stderr for outcome in outcomes)
    assert "ValueError: the arm fell off" in said
    assert "started again: resuming from iteration 2" in said


def test_an_agent_of_torchrun_that_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    """Its ranks die with it, and the others notice, say who is gone, and leave nothing."""
    jobs = [
        start(
            node,
            tmp_path,
            *TORCHRUN,
            *["--nnodes=2", "--nproc_per_node=1", f"--node_rank={index}", "--master_addr=zeta", "--master_port=5555"],
            *train(TASK, "--max-iterations", "1000"),
            MJTRAIN_TEST_SLOW="0.2",
        )
        for index, node in enumerate(cluster.nodes)
    ]
    jobs[0].wait_for("iteration 2/")
    jobs[1].kill(signal.SIGKILL)
    assert [job.finish(since=0.0).status for job in jobs] == [1, -signal.SIGKILL]
    said = (tmp_path / "zeta" / "stderr").read_text()
    assert "FAILED: rank 0 on host zeta" in said
    assert "(lost other ranks: zeta has rank 0; alpha has rank 1)" in said


def test_a_master_that_is_not_there(cluster: Cluster, tmp_path: Path) -> None:
    """Within the stated time, by name; a name that does not resolve, and a host that does not answer."""
    environ = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": "5556"}
    command = [PYTHON, *train("Cartpole-Balance", "--connect-timeout-s", "2")]
    reasons = {"nowhere": "the name does not resolve", "zeta": "Connection refused"}
    jobs = []
    for master in reasons:
        (tmp_path / master).mkdir()
        jobs.append(start(cluster.nodes[1], tmp_path / master, *command, MASTER_ADDR=master, **environ))
    for outcome, (master, reason) in zip(finish(jobs), reasons.items(), strict=True):
        assert outcome.status == 1
        assert f"the master of this job (torchrun) at {master}:5556 cannot be reached within 2 s" in outcome.stderr
        assert reason in outcome.stderr


def test_a_rank_that_does_not_connect_is_named(cluster: Cluster, tmp_path: Path) -> None:
    environ = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_PORT": "5556"}
    node = cluster.nodes[0]
    job = start(
        node, tmp_path, PYTHON, *train("Cartpole-Balance", "--connect-timeout-s", "2"), MASTER_ADDR="zeta", **environ
    )
    outcome = job.finish(since=0.0)
    assert outcome.status == 1
    assert "rank 1 of 2 did not connect to zeta:5556 within 2 s (--connect-timeout-s)" in outcome.stderr


RANK = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "zeta", "MASTER_PORT": "5557"}


def start_apart(cluster: Cluster, folder: Path, ranks: dict[str, dict[str, str]], *flags: str) -> list[Job]:
    """Start one process per name, in a folder of that name: the first on zeta, and the others on alpha."""
    for name in ranks:
        (folder / name).mkdir()
    return [
        start(cluster.nodes[min(index, 1)], folder / name, PYTHON, *train(TASK, *flags), **RANK, **environ)
        for index, (name, environ) in enumerate(ranks.items())
    ]


def test_ranks_that_disagree_on_their_number(cluster: Cluster, tmp_path: Path) -> None:
    """A rank with the correct number fails too."""
    sizes = {"0": "3", "1": "3", "2": "4"}
    ranks = {f"rank_{rank}": {"RANK": rank, "WORLD_SIZE": size} for rank, size in sizes.items()}
    for outcome in finish(start_apart(cluster, tmp_path, ranks)):
        assert outcome.status == 2, outcome.stderr
        assert re.search(
            "rank 0 .* expects 3 ranks .* rank 2 .* expects 4|rank 2 .* expects 4 ranks .* rank 0 .* expects 3",
            outcome.stderr,
        )
        assert "start all of them with the same number" in outcome.stderr


def test_a_rank_that_starts_again_alone(cluster: Cluster, tmp_path: Path) -> None:
    """The others train with its earlier process."""
    pair = {name: {"RANK": rank, "WORLD_SIZE": "2"} for name, rank in (("first", "0"), ("second", "1"))}
    slow = [environ | {"MJTRAIN_TEST_SLOW": "0.2"} for environ in pair.values()]
    jobs = start_apart(cluster, tmp_path, dict(zip(pair, slow, strict=True)), "--max-iterations", "1000")
    jobs[0].wait_for("iteration 1/")
    (late,) = finish(start_apart(cluster, tmp_path, {"late": pair["second"]}, "--connect-timeout-s", "6"))
    for job in jobs:
        job.kill(signal.SIGKILL)
        job.finish(since=0.0)
    assert late.status == 1
    words = "rank 0 did not accept this process within {} s{}: a process on host alpha has joined this job as rank 1"
    assert words.format(5, "") in late.stderr
    assert words.format(6, " (--connect-timeout-s)") in late.stderr


def test_nodes_that_disagree_on_their_number(cluster: Cluster, tmp_path: Path) -> None:
    """Also where node 0 does not expect that many: its number tells it from a stranger."""
    place = {"MASTER_ADDR": "zeta", "MASTER_PORT": "5558"}
    jobs = [
        start(node, tmp_path, PYTHON, *train(), RANK=str(2 * rank), WORLD_SIZE=str(2 + rank), **place)
        for rank, node in enumerate(cluster.nodes)
    ]
    for outcome in finish(jobs):
        assert outcome.status == 2
        assert "node 2 on host alpha asks for a job of 3 nodes and node 0 for a job of 2 nodes" in outcome.stderr


def test_two_processes_with_the_same_rank(cluster: Cluster, tmp_path: Path) -> None:
    """The first of them fails, and the job waits for the rank that is missing."""
    ranks = {name: {"RANK": rank, "WORLD_SIZE": "3"} for name, rank in (("0", "0"), ("1", "1"), ("again", "1"))}
    jobs = start_apart(cluster, tmp_path, ranks, "--connect-timeout-s", "15")
    leader, *pair = finish(jobs)
    assert leader.status == 1
    assert "rank 2 of 3 did not connect to zeta:5557 within 5 s; waiting for at most 15 s" in leader.stderr
    told = [outcome for outcome in pair if outcome.status == 2]
    assert len(told) == 1
    assert (
        "rank 1: another process, on host alpha, has the same rank (RANK); start each rank of a job once"
        in told[0].stderr
    )


@pytest.mark.parametrize(
    ("name", "local"), [("rank", {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}), ("node", {})], ids=["ranks", "nodes"]
)
def test_hosts_with_different_code_or_flags(name: str, local: dict[str, str], cluster: Cluster, tmp_path: Path) -> None:
    """Both ends refuse it: they would learn from different rewards, and no drift check would see it."""
    alpha = cluster.nodes[1]
    task, robot, part = (tmp_path / file for file in ("a_task.py", "robot.xml", "part.xml"))
    task.write_text(Path(TASK.partition(":")[0]).read_text())
    robot.write_text('<mujoco><include file="part.xml"/></mujoco>')
    part.write_text(Path(load_task("Cartpole-Balance").env.robot.file).read_text())
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "zeta", "MASTER_PORT": "5559", **local}

    def run_both(*more: tuple[str, ...]) -> list[str]:
        jobs = [
            start(node, tmp_path, PYTHON, *train(f"{task}:make", *flags), RANK=str(rank), **place)
            for rank, (node, flags) in enumerate(zip(cluster.nodes, more, strict=True))
        ]
        outcomes = finish(jobs)
        assert [outcome.status for outcome in outcomes] == [2, 2], outcomes[0].stderr
        assert not (tmp_path / "logs").exists()
        return [outcome.stderr for outcome in outcomes]

    flags = ("--env.robot", str(robot))
    for file, here, there, asked in (
        (task, "\n", "\n# edited\n", r"the code mjtrain_task_a_task\.py: \*\.py with the digest \w{12}"),
        (part, 'mass="1"', 'mass="2"', r'"file": "a robot whose files have the digest \w{12}"'),
    ):
        other = tmp_path / "other"
        other.write_text(file.read_text().replace(here, there, 1))
        alpha.run("mount", "--bind", str(other), str(file))
        try:
            for said in run_both(flags, flags):
                assert re.search(
                    rf"{name} 1 on host alpha asks for {asked} and {name} 0 for {asked}: start all of them", said
                )
        finally:
            alpha.run("umount", str(file))
    for said in run_both((), ("--env.decimation", "3")):
        assert f'{name} 1 on host alpha asks for "decimation": 3 and' in said
