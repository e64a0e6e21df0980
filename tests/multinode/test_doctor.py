"""Ills between hosts, each seeded for real: what doctor says of them."""

import json
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.cluster import PYTHON, TORCHRUN, Cluster, Node
from support.jobs import Outcome
from support.machine import patience
from support.multinode_jobs import start

DOCTOR = ["-m", "mjtrain.cli.doctor", "--gpu-ids", "None", "--num-threads", "1"]
FAST = ["--skip", "kernels", "rendering"]

CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += 60;
  return status;
}
"""
"""A library with which the processes of a host read a clock that is a minute ahead: namespaces share the machine's."""


def read(path: Path) -> list[dict[str, str]]:
    return json.loads(path.read_text())["findings"]


def of(findings: list[dict[str, str]], check: str) -> list[tuple[str, str]]:
    return [(one["place"], one["result"]) for one in findings if one["check"] == check]


@contextmanager
def other_version(node: Node, package: str, folder: Path) -> Iterator[None]:
    """Have a host find another version of a package installed."""
    metadata = next(Path(sysconfig.get_path("purelib")).glob(f"{package}-*.dist-info")) / "METADATA"
    other = folder / "METADATA"
    other.write_text(re.sub(r"^Version: .*$", "Version: 9.9", metadata.read_text(), count=1, flags=re.MULTILINE))
    node.run("mount", "--bind", str(other), str(metadata))
    try:
        yield
    finally:
        node.run("umount", str(metadata))


@contextmanager
def own_folder(node: Node, folder: Path) -> Iterator[None]:
    """Have a host see a separate folder at a path."""
    node.run("mount", "-t", "tmpfs", "none", str(folder))
    try:
        yield
    finally:
        node.run("umount", str(folder))


@contextmanager
def slow_link(node: Node) -> Iterator[None]:
    """Let a host send 5 MB/s at most."""
    node.run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "40mbit", "burst", "32kb", "latency", "400ms")
    try:
        yield
    finally:
        node.run("tc", "qdisc", "del", "dev", "eth0", "root")


@contextmanager
def closed_ports(node: Node) -> Iterator[None]:
    """Have a host reach other hosts by ssh only, as through a firewall."""
    rule = ["pref", "10", "ipproto", "tcp", "sport", "1024-65534", "dport", "1024-65534", "unreachable"]
    node.run("ip", "rule", "add", *rule)
    try:
        yield
    finally:
        node.run("ip", "rule", "del", *rule)


def named_hosts(cluster: Cluster, folder: Path, *flags: str) -> tuple[Outcome, list[dict[str, str]]]:
    command = [PYTHON, *DOCTOR, "--ssh-config-file", str(cluster.ssh_config), "--json", "report.json", *flags]
    outcome = start(cluster.nodes[0], folder, *command).finish(since=0.0)
    return outcome, read(folder / "report.json")


def test_hosts_that_cannot_be_used(cluster: Cluster, tmp_path: Path) -> None:
    """One has another torch, one no name, and one no machine behind it: no rank is started."""
    with other_version(cluster.nodes[1], "torch", tmp_path):
        outcome, findings = named_hosts(
            cluster, tmp_path, *FAST, "--hostnames", "zeta", "alpha", "nowhere", "10.77.0.99", "--timeout-s", "20"
        )
    assert outcome.status == 1
    failures = {(one["check"], one["place"]): one for one in findings if one["result"] == "failure"}
    assert set(failures) == {("packages", "alpha"), ("host", "nowhere"), ("host", "10.77.0.99")}
    torch = failures["packages", "alpha"]
    assert re.fullmatch(r"torch 9\.9, and \S+ on zeta", torch["figure"])
    assert "pip install torch==" in torch["advice"]
    assert failures["host", "nowhere"]["figure"] == "the name does not resolve"
    assert failures["host", "nowhere"]["advice"].startswith("add nowhere to DNS, /etc/hosts")
    assert failures["host", "10.77.0.99"]["figure"].startswith("SSH failed: ")
    assert failures["host", "10.77.0.99"]["advice"].startswith("`ssh -o BatchMode=yes 10.77.0.99 true` must work")
    (ranks,) = [one for one in findings if one["check"] == "ranks"]
    assert (ranks["result"], ranks["figure"][:28]) == ("not checked", "not started, because of host")
    assert sorted(place for place, _ in of(findings, "log root")) == ["alpha", "zeta"]

    mended = ["--skip", "kernels", "rendering", "log-root", "ranks", "--hostnames", "zeta", "alpha"]
    outcome, findings = named_hosts(cluster, tmp_path, *mended)
    assert outcome.status == 0
    assert of(findings, "packages") == [("zeta", "ok"), ("alpha", "ok")]


def test_a_firewall(cluster: Cluster, tmp_path: Path) -> None:
    """SSH comes through, and the ranks do not."""
    with closed_ports(cluster.nodes[1]):
        flags = ["--skip", "kernels", "rendering", "log-root", "--hostnames", "zeta", "alpha", "--timeout-s", "10"]
        outcome, findings = named_hosts(cluster, tmp_path, *flags)
    assert outcome.status == 1
    (found,) = [one for one in findings if one["result"] == "failure"]
    assert found["check"] == "ranks"
    figures = (
        "rank 1 on host alpha.*: ConnectionError: rank 0 at .* cannot be reached within 10 s.*",
        "rank 0 .*timeout.*",
    )
    assert any(re.match(figure, found["figure"]) for figure in figures), found["figure"]  # whichever waits no longer
    assert "between the hosts in the firewall" in found["advice"]


def test_a_cable_that_is_pulled_out(cluster: Cluster, tmp_path: Path) -> None:
    """While a host checks its storage: it is named, and what it had found before stays in the table."""
    zeta, alpha = cluster.nodes
    flags = ["--skip", "kernels", "rendering", "--hostnames", "zeta", "alpha", "--timeout-s", "25"]
    flags += ["--checkpoint-url", "s3://bucket/run", "--json", "report.json", "--all"]
    storage = {
        "AWS_ENDPOINT_URL": "http://10.77.0.99:80",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "none",
    }
    command = [PYTHON, *DOCTOR, "--ssh-config-file", str(cluster.ssh_config), *flags]
    job = start(zeta, tmp_path, *command, **storage)
    job.wait_for("\nlog root      alpha ")
    alpha.set_link("down")
    try:
        outcome = job.finish(since=0.0)
    finally:
        alpha.set_link("up")
    assert outcome.status == 1
    failures = {
        (one["check"], one["place"]): one for one in read(tmp_path / "report.json") if one["result"] == "failure"
    }
    assert set(failures) == {("storage", "zeta"), ("host", "alpha")}
    assert failures["host", "alpha"]["advice"]
    assert failures["storage", "zeta"]["advice"]


def test_a_slow_link_a_wrong_clock_and_a_folder_that_is_not_shared(cluster: Cluster, tmp_path: Path) -> None:
    """A run works in spite of them. The command is started on each node, as Kubeflow and PAI-DLC do."""
    if shutil.which("cc") is None or shutil.which("tc") is None:
        pytest.skip("needs the programs cc and tc")
    zeta, alpha = cluster.nodes
    logs, source, library = tmp_path / "logs", tmp_path / "clock.c", tmp_path / "clock.so"
    logs.mkdir()
    source.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "zeta", "MASTER_PORT": "23461"}
    with ExitStack() as stack:
        stack.enter_context(slow_link(alpha))
        stack.enter_context(own_folder(alpha, logs))
        command = [PYTHON, *DOCTOR, *FAST, "--json", "report.json"]
        first = start(zeta, tmp_path, *command, **place, RANK="0")
        second = start(alpha, tmp_path, *command, **place, RANK="1", LD_PRELOAD=str(library))
        outcomes = [job.finish(since=0.0) for job in (first, second)]
    assert [outcome.status for outcome in outcomes] == [0, 0], outcomes[0].stdout + outcomes[1].stderr
    assert outcomes[1].stdout == ""
    findings = read(tmp_path / "report.json")
    warnings = {(one["check"], one["place"]): one for one in findings if one["result"] == "warning"}
    wanted = {("all-reduce", ""), ("link", "alpha"), ("clock", "alpha"), ("shared folder", "alpha")}
    assert wanted <= set(warnings)
    assert not [one for one in findings if one["result"] == "failure"]
    (speed,) = re.findall(r" (\d+) MB/s, over eth0$", warnings["link", "alpha"]["figure"])
    assert int(speed) < 12  # there and back; only the way back is slow
    assert warnings["all-reduce", ""]["figure"].endswith("over eth0")
    assert "--interface" in warnings["all-reduce", ""]["advice"]
    assert warnings["link", "alpha"]["advice"].startswith("look at the cable, the switch and the route of alpha")
    (ahead_s,) = re.findall(r"^(\S+) s ahead of zeta$", warnings["clock", "alpha"]["figure"])
    assert float(ahead_s) == pytest.approx(60.0, abs=3.0)
    assert warnings["clock", "alpha"]["advice"].startswith("set the clock of alpha by NTP")
    assert warnings["shared folder", "alpha"]["figure"] == "files of zeta are not seen in the log root"
    assert "file system that all hosts share" in warnings["shared folder", "alpha"]["advice"]
    assert of(findings, "descriptors") == [("zeta", "ok"), ("alpha", "ok")]
    assert list(logs.iterdir()) == []


def test_under_torchrun(cluster: Cluster, tmp_path: Path) -> None:
    """The same hosts without those ills: the ranks are those that torchrun has started, and there is one table."""
    jobs = []
    for index, node in enumerate(cluster.nodes):
        place = [f"--node_rank={index}", "--master_addr=zeta", "--master_port=5561"]
        command = [*TORCHRUN, "--nnodes=2", "--nproc_per_node=1", *place, *DOCTOR, *FAST, "--json", "report.json"]
        jobs.append(start(node, tmp_path, *command))
    outcomes = [job.finish(since=0.0) for job in jobs]
    assert [outcome.status for outcome in outcomes] == [0, 0], outcomes[0].stdout + outcomes[1].stderr
    assert outcomes[0].stdout.count("\nranks ") == 1
    assert re.search(r"^alpha: 1\d ok, \d not checked \(--all prints them\)$", outcomes[0].stdout, re.MULTILINE)
    assert not re.search(r"^log root +\w+ +ok ", outcomes[0].stdout, re.MULTILINE)
    assert "ranks " not in outcomes[1].stdout
    findings = read(tmp_path / "report.json")
    (ranks,) = [one for one in findings if one["check"] == "ranks"]
    assert ranks["figure"] == "2 started, over gloo (zeta: 1 on cpu; alpha: 1 on cpu)"
    (link,) = [one for one in findings if one["check"] == "link"]
    assert (link["place"], link["figure"].endswith("over eth0")) == ("alpha", True)
    for check in ("clock", "shared folder"):
        assert of(findings, check) == [("", "ok")]
    assert [place for place, _ in of(findings, "log root")] == ["zeta", "alpha"]
    assert not [one for one in findings if one["result"] == "failure"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alpha", "notes", "report.json", "zeta"]


def test_under_torchrun_each_host_tells_what_it_found(cluster: Cluster, tmp_path: Path) -> None:
    """The ranks do not find each other, because the interface of the first is wrong: the other host says its own."""
    jobs, flags = [], [*FAST, "--timeout-s", str(patience(1.5)), "--all"]
    for index, node in enumerate(cluster.nodes):
        place = [f"--node_rank={index}", "--master_addr=zeta", "--master_port=5562"]
        command = [*TORCHRUN, "--nnodes=2", "--nproc_per_node=1", *place, *DOCTOR, *flags]
        jobs.append(start(node, tmp_path, *command, **({"GLOO_SOCKET_IFNAME": "nosuch"} if index == 0 else {})))
    first, second = [job.finish(since=0.0) for job in jobs]
    assert (first.status, second.status) == (1, 1)
    assert "failure: interface on zeta: unset GLOO_SOCKET_IFNAME, or set it to one of eth0\n" in first.stdout
    assert re.search("^log root +alpha +ok ", second.stdout, re.MULTILINE)
    assert "interface on zeta" not in second.stdout
