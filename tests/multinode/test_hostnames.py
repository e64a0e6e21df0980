"""Jobs on several hosts with one command."""

import json
import os
import re
import signal
import sysconfig
from pathlib import Path

import pytest
import yaml

from support.cluster import PYTHON, TASK, TRAIN, Cluster
from support.jobs import LIMIT_S
from support.machine import read_proc, wait_until
from support.multinode_jobs import FLAGS, check_run, notes, start


def command(cluster: Cluster, *flags: str) -> list[str]:
    config = str(cluster.ssh_config)
    return [PYTHON, *TRAIN, TASK, *FLAGS, "--ssh-config-file", config, *flags]


@pytest.mark.supports("training", start="several hosts over SSH", hosts="2")
def test_two_hosts_with_two_ranks_each(cluster: Cluster, tmp_path: Path) -> None:
    """From the first of them, by its own name. The second is an alias that only the SSH configuration has."""
    flags = ["--hostnames", "zeta", "box:2", "--num-workers", "2"]
    environ = {"WANDB_API_KEY": "a-well-kept-secret", "MJTRAIN_TEST_SLOW": "0.5"}
    job = start(cluster.nodes[0], tmp_path, *command(cluster, *flags), **environ)
    job.wait_for("iteration 1/")
    arguments = b"".join(read_proc(pid, "cmdline") for pid in job.processes())
    assert b"mjtrain" in arguments
    assert b"a-well-kept-secret" not in arguments
    outcome = job.finish(since=0.0)
    check_run(tmp_path, [outcome], ["zeta", "zeta", "alpha", "alpha"])
    assert {note["secret"] for note in notes(tmp_path)} == {"a-well-kept-secret"}
    (run,) = tmp_path.glob("logs/*/*")
    logs = sorted(path.name for path in run.glob("torchrunx/*/*"))
    assert logs == ["box.log", "box[0].log", "box[1].log", "zeta.log", "zeta[0].log", "zeta[1].log"]
    (params,) = run.glob("params/launch.yaml")
    assert "a-well-kept-secret" not in params.read_text()
    assert yaml.safe_load(params.read_text())["plan"]["log_dir"] == str(run / "torchrunx")
    *_, last, end = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert (last["world_size"], end["how"]) == (4, "done")


def test_a_failure_a_restart_and_a_signal(cluster: Cluster, tmp_path: Path) -> None:
    """A rank fails on the other host: it is named, the run resumes, and a later signal saves."""
    flags = ["--hostnames", "zeta", "alpha", "--max-restarts", "1", "--max-iterations", "1000"]
    fault = {"MJTRAIN_TEST_FAULT": "1:3", "MJTRAIN_TEST_SLOW": "0.2"}
    job = start(cluster.nodes[0], tmp_path, *command(cluster, *flags), **fault)
    job.wait_for("restart 1 of 1", "stderr")
    job.wait_for("iteration 5/")
    outcome = job.finish(job.kill(signal.SIGTERM))
    check_nothing_left(cluster)
    assert outcome.status == 143
    assert "from iteration 2, after rank 1 on host alpha: ValueError: the arm fell off" in outcome.stderr
    assert outcome.stderr.count("SIGTERM: finishing this iteration") == 1
    (run,) = tmp_path.glob("logs/*/*")
    last = int(outcome.stdout.splitlines()[-1].split()[1].partition("/")[0])
    assert (run / f"model_{last}.pt").exists()


def test_a_cable_that_is_pulled_out(cluster: Cluster, tmp_path: Path) -> None:
    """Both ends notice: the launcher names the host, and the agent on that host ends its ranks."""
    zeta, alpha = cluster.nodes
    flags = ["--hostnames", "zeta", "alpha", "--max-iterations", "1000", "--host-timeout-s", "15"]
    job = start(zeta, tmp_path, *command(cluster, *flags), MJTRAIN_TEST_SLOW="0.2")
    job.wait_for("iteration 2/")
    assert any(alpha.has(pid) for pid in job.processes())
    alpha.set_link("down")
    try:
        outcome = job.finish(since=0.0)  # and nothing is left on either
        check_nothing_left(cluster)
    finally:
        alpha.set_link("up")
    assert outcome.status == 1
    assert outcome.last_block.startswith("FAILED: the job on host alpha: no message from this host for 15 s")


def test_a_host_whose_agent_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    zeta, alpha = cluster.nodes
    flags = ["--hostnames", "zeta", "alpha", "--max-iterations", "1000"]
    job = start(zeta, tmp_path, *command(cluster, *flags), MJTRAIN_TEST_SLOW="0.2")
    job.wait_for("iteration 2/")
    agents = alpha.find("mjtrain.launcher.multinode.node_agent")
    (agent,) = [pid for pid in agents if b"sh\0-c" not in read_proc(pid, "cmdline")]
    os.kill(agent, signal.SIGKILL)
    outcome = job.finish(since=0.0)
    check_nothing_left(cluster)
    assert outcome.status == 1
    words = "FAILED: the job on host alpha: mjtrain's agent on this host was killed"
    assert outcome.last_block.startswith(words)


def check_nothing_left(cluster: Cluster) -> None:
    """The agent of each node is gone too, on an idle machine within the time that the project promises."""
    wait_until(lambda: not any(node.find("mjtrain") for node in cluster.nodes), "no process is left", LIMIT_S)


def refuse(cluster: Cluster, folder: Path, *flags: str) -> list[str]:
    """Make a request that fails; return what the command prints, a line for each problem."""
    outcome = start(cluster.nodes[0], folder, *command(cluster, *flags)).finish(since=0.0)
    assert outcome.status == 2, outcome.stderr
    assert not (folder / "logs").exists()
    return outcome.stderr.splitlines()


def test_hosts_that_cannot_be_used(cluster: Cluster, tmp_path: Path) -> None:
    """An unknown host, and one with another version of a package: each has a line, and nothing starts anywhere."""
    alpha = cluster.nodes[1]
    metadata = next(Path(sysconfig.get_path("purelib")).glob("mujoco-*.dist-info")) / "METADATA"
    other = tmp_path / "METADATA"
    other.write_text(re.sub(r"^Version: .*$", "Version: 9.9", metadata.read_text(), count=1, flags=re.MULTILINE))
    alpha.run("mount", "--bind", str(other), str(metadata))
    try:
        lines = refuse(cluster, tmp_path, "--hostnames", "zeta", "nowhere", "alpha")
    finally:
        alpha.run("umount", str(metadata))
    assert lines[0] == "train: --hostnames: host nowhere: the name does not resolve"
    assert lines[1].startswith("train: host alpha: mujoco is 9.9 there and ")
    assert len(lines) == 2


def test_a_host_that_is_not_who_it_was(cluster: Cluster, tmp_path: Path) -> None:
    """A changed host key, an unknown one, and a folder that does not exist."""
    zeta, alpha = cluster.nodes
    known = cluster.folder / "other_hosts"
    key = (zeta.folder / "host_key.pub").read_text().split()[1]
    known.write_text(f"alpha ssh-ed25519 {key}\n")  # and nothing of the address that "box" stands for
    config = cluster.write_ssh_config("other_config", known)
    lines = refuse(cluster, tmp_path, "--hostnames", "zeta", "alpha", "box", "--ssh-config-file", str(config))
    text = "\n".join(lines)
    assert "host alpha: its SSH host key has changed" in text
    assert "host box: its SSH host key is not known" in text
    assert len(lines) == 2
    folder = tmp_path / "here"
    folder.mkdir()
    alpha.run("mount", "-t", "tmpfs", "none", str(tmp_path))
    try:
        (line,) = refuse(cluster, folder, "--hostnames", "zeta", "alpha")
    finally:
        alpha.run("umount", str(tmp_path))
    assert line.startswith(f"train: --hostnames: host alpha: the working directory {folder} does not exist")


@pytest.mark.supports("training", start="a launcher on every node (Kubeflow's PyTorchJob, PAI-DLC)", hosts="2")
def test_variables_that_number_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """As Kubeflow's PyTorchJob and PAI-DLC set them: each node starts its own ranks; a restart and a signal as well."""
    fault = {"MJTRAIN_TEST_FAULT": "1:3", "MJTRAIN_TEST_SLOW": "0.2"}
    flags = ["--num-workers", "1", "--max-restarts", "1", "--max-iterations", "1000"]
    jobs = [
        start(
            node,
            tmp_path,
            *[PYTHON, *TRAIN, TASK, *FLAGS, *flags],
            **{"RANK": str(index), "WORLD_SIZE": "2", "MASTER_ADDR": "zeta", "MASTER_PORT": "23456"},
            **fault,
        )
        for index, node in enumerate(cluster.nodes)
    ]
    jobs[0].wait_for("iteration 5/")
    jobs[1].kill(signal.SIGTERM)  # a scheduler signals all nodes, and this one may be heard of first
    jobs[0].wait_for("SIGTERM: finishing this iteration", "stderr")
    jobs[0].kill(signal.SIGTERM)
    first, second = [job.finish(since=0.0) for job in jobs]
    check_nothing_left(cluster)
    assert [first.status, second.status] == [143, 143], second.stderr
    assert "from iteration 2, after rank 1 on host alpha: ValueError: the arm fell off" in first.stderr
    found = notes(tmp_path)
    assert [(note["RANK"], note["host"], note["seed"]) for note in found[::2]] == [(0, "zeta", 0), (1, "alpha", 1)]
    (run,) = tmp_path.glob("logs/*/*")
    last = int(first.stdout.splitlines()[-1].split()[1].partition("/")[0])
    assert (run / f"model_{last}.pt").exists()


def test_nodes_that_do_not_agree(cluster: Cluster, tmp_path: Path) -> None:
    """Another command on one of them, half of the variables, or an empty token: an error that says so."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "zeta", "MASTER_PORT": "23457"}
    jobs = [
        start(node, tmp_path, PYTHON, *TRAIN, TASK, *FLAGS, "--num-workers", str(index + 1), RANK=str(index), **place)
        for index, node in enumerate(cluster.nodes)
    ]
    (tmp_path / "half").mkdir()
    half = start(cluster.nodes[0], tmp_path / "half", PYTHON, *TRAIN, TASK, *FLAGS, **place)
    for job in jobs:
        outcome = job.finish(since=0.0)
        assert outcome.status == 2
        assert "has 2 ranks and node 0 has 1: start the same number on every node" in outcome.stderr
    (tmp_path / "open").mkdir()
    command = [PYTHON, *TRAIN, TASK, *FLAGS]
    anyone = start(cluster.nodes[0], tmp_path / "open", *command, RANK="0", **place, MJTRAIN_JOB_TOKEN="")
    outcome = anyone.finish(since=0.0)
    assert outcome.status == 2
    assert "train: MJTRAIN_JOB_TOKEN is empty: set it to the same secret on every node" in outcome.stderr
    outcome = half.finish(since=0.0)
    assert outcome.status == 2
    assert "WORLD_SIZE is set, as in one node of a job, but RANK is not" in outcome.stderr
