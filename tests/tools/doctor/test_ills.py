"""Ills of one host, each seeded for real: what doctor says of it, and its status."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import mjtrain
from mjtrain.runtime.rank import RankContext
from support.jobs import Job
from support.machine import free_port, patience, wait_until

SLOW = {"gpus", "log-root", "storage", "kernels", "rendering", "ranks"}


@dataclass(frozen=True, kw_only=True)
class Ill:
    """What is wrong with a host, and what doctor must say of it."""

    check: str
    result: str
    figure: str
    """Part of what the table says."""
    advice: str
    """Part of the advice."""
    before: str = ":"
    """Commands of a shell in mounts of its own, before doctor starts; {folder} is the folder of the test."""
    flags: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    needs: str | None = None
    """The check that must not be skipped."""
    mend: str
    """Commands of the same shell that do what the advice says; then the check is ok."""


ILLS = {
    "no EGL": Ill(
        check="rendering",
        result="warning",
        figure="egl: ",
        advice="apt-get install libegl1 libegl-mesa0",
        environ={"__EGL_VENDOR_LIBRARY_DIRS": "/nowhere", "MUJOCO_GL": "egl"},
        needs="rendering",
        mend="unset __EGL_VENDOR_LIBRARY_DIRS",  # its packages are there again
    ),
    "no EGL, and videos": Ill(
        check="rendering",
        result="failure",
        figure="egl: ",
        advice="apt-get install libegl1 libegl-mesa0",
        environ={"__EGL_VENDOR_LIBRARY_DIRS": "/nowhere", "MUJOCO_GL": "egl"},
        flags=("--video",),
        needs="rendering",
        mend="unset __EGL_VENDOR_LIBRARY_DIRS",  # its packages are there again
    ),
    "read-only log root": Ill(
        check="log root",
        result="failure",
        figure="read-only file system",
        advice="mount it with write permission",
        before="mkdir -p {folder}/logs && mount -t tmpfs -o ro none {folder}/logs",
        mend="mount -o remount,rw {folder}/logs",
        needs="log-root",
    ),
    "full disk": Ill(
        check="disk space",
        result="failure",
        figure="MB free at ",
        advice="delete old runs, keep fewer checkpoints (--keep-checkpoints N)",
        before="mkdir -p {folder}/logs && mount -t tmpfs -o size=8m none {folder}/logs",
        mend="mount -o remount,size=4g {folder}/logs",
        needs="log-root",
    ),
    "too few descriptors": Ill(
        check="descriptors",
        result="failure",
        figure="20 open files per process",
        advice="`ulimit -n 65536`",
        before="ulimit -Sn 20",
        mend="ulimit -Sn 4096",
        flags=("--num-workers", "2", "--num-threads", "1"),
    ),
    "wrong interface": Ill(
        check="interface",
        result="failure",
        figure="GLOO_SOCKET_IFNAME nosuch: does not exist",
        advice="unset GLOO_SOCKET_IFNAME, or set it to one of ",
        environ={"GLOO_SOCKET_IFNAME": "nosuch"},
        mend="unset GLOO_SOCKET_IFNAME",
    ),
    "small /dev/shm": Ill(
        check="/dev/shm",
        result="warning",
        figure="8.39 MB free",
        advice="docker run --shm-size=1g",
        before="mount -t tmpfs -o size=8m none /dev/shm",
        mend="mount -o remount,size=1g /dev/shm",
    ),
    "too little memory": Ill(
        check="memory",
        result="failure",
        figure="4 ranks take 4.29 GB",
        advice="start fewer ranks, end other programs, or raise the limit",
        before="{enter_cgroup}",
        mend="{raise_limit}",
        flags=("--num-workers", "4", "--num-threads", "1"),
    ),
    "a storage that refuses": Ill(
        check="storage",
        result="failure",
        figure="",
        advice="check the bucket, the credentials",
        before="mkdir -p {folder}/bucket && mount -t tmpfs -o ro none {folder}/bucket",
        mend="mount -o remount,rw {folder}/bucket",
        flags=("--checkpoint-url", "file://{folder}/bucket/runs"),
        needs="storage",
    ),
}


def why_no_mounts() -> str | None:
    """Say why this machine allows no mounts of one's own; None if it does."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "mounts of one's own need root and the program unshare"
    done = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, check=False
    )
    return None if done.returncode == 0 else f"mounts of one's own are not allowed here: {done.stderr.strip()}"


@pytest.fixture(scope="module", autouse=True)
def _mounts() -> None:
    if (reason := why_no_mounts()) is not None:
        pytest.skip(reason)


@pytest.fixture
def small_cgroup() -> Iterator[tuple[str, str]]:
    """Commands with which a shell gets 1.5 GB of memory only, and with which it gets 12 GB."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = Path(root) / f"mjtrain-test-{os.getpid()}"
        try:
            folder.mkdir()
            (folder / limit).write_text("1500000000")
        except OSError:
            if folder.is_dir():
                folder.rmdir()
            continue
        yield f"echo $$ > {folder}/cgroup.procs", f"echo 12000000000 > {folder / limit}"
        wait_until(lambda procs=folder / "cgroup.procs": not procs.read_text(), "the cgroup is empty")
        folder.rmdir()
        return
    pytest.skip("memory cgroups are not allowed here")


def doctor(
    folder: Path, *flags: str, before: str = ":", skip: set[str] = SLOW, **environ: str
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, str]]]:
    """Run the command in mounts of its own; return how it ended, and what it wrote as JSON."""
    report = folder.parent / f"{folder.name}.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "mjtrain", "doctor", "--gpu-ids", "None", "--json", str(report), *flags]
    command += ["--skip", *sorted(skip)] if skip else []
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-ec", f"{before}\nexec {shlex.join(command)}"],
        cwd=folder,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environ,
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    answer = json.loads(report.read_text())
    assert answer["would_fail"] == (done.returncode == 1)
    return done, answer["findings"]


@pytest.mark.parametrize("name", ILLS)
def test_an_ill_is_found_with_its_advice(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    ill = ILLS[name]
    names = {"folder": tmp_path}
    if "{enter_cgroup}" in ill.before:
        names["enter_cgroup"], names["raise_limit"] = request.getfixturevalue("small_cgroup")
    flags = [flag.format(**names) for flag in ill.flags]
    before, skip = ill.before.format(**names), SLOW - {ill.needs}
    done, findings = doctor(tmp_path, *flags, before=before, skip=skip, **ill.environ)
    (found,) = [one for one in findings if one["check"] == ill.check and one["result"] != "ok"]
    assert (found["result"], found["place"]) == (ill.result, socket.gethostname())
    assert ill.figure in found["figure"]
    assert ill.advice in found["advice"]
    alike = [one["check"] for one in findings if one["result"] == ill.result]
    assert done.returncode == (1 if ill.result == "failure" else 0)
    assert f"{ill.result}: {ill.check} on {found['place']}: {found['advice']}" in done.stdout.splitlines()

    done, findings = doctor(tmp_path, *flags, before=f"{before}\n{ill.mend.format(**names)}", skip=skip, **ill.environ)
    assert {one["result"] for one in findings if one["check"] == ill.check} == {"ok"}, done.stdout
    without = [one["check"] for one in findings if one["result"] == ill.result]
    assert [check for check in alike if check not in without] == [ill.check]
    assert done.returncode == 0


def test_a_host_without_ills(tmp_path: Path) -> None:
    """With all that the ills above lack, everything is ok, and nothing is left."""
    done, findings = doctor(
        tmp_path, "--num-workers", "2", "--checkpoint-url", f"file://{tmp_path}/bucket/runs", "--video", skip=set()
    )
    assert done.returncode == 0
    results = {one["check"]: one["result"] for one in findings}
    checks = {"rendering", "descriptors", "interface", "storage", "ranks", "warp kernels"}  # the others have speeds
    assert {results[check] for check in checks} == {"ok"}
    assert next(one["figure"] for one in findings if one["check"] == "all-reduce").endswith("over lo")
    assert not [one for one in findings if one["result"] == "failure"]
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """As the first of two nodes: who holds the port is named; a free one is not found fault with."""
    place = "export RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        done, findings = doctor(tmp_path, before=f"{place}{port}")
    (found,) = [one for one in findings if one["result"] == "failure"]
    assert found["check"] == "port"
    assert found["figure"].startswith(f"127.0.0.1:{port}: address already in use, held by process {os.getpid()} (")
    assert found["advice"].startswith("set MASTER_PORT to a free port on every host")
    done, findings = doctor(tmp_path, before=f"{place}{port}")
    assert done.returncode == 0
    assert [one["result"] for one in findings if one["check"] == "port"] == ["ok"]


def test_a_storage_that_never_answers(tmp_path: Path) -> None:
    """The check is given up after its limit; the command continues."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        environ = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.getsockname()[1]}", "AWS_ACCESS_KEY_ID": "nobody"}
        flags = ["--checkpoint-url", "s3://bucket/run", "--timeout-s", "4"]
        _, findings = doctor(
            tmp_path, *flags, skip=SLOW - {"storage"}, **environ, AWS_SECRET_ACCESS_KEY="a-well-kept-secret"
        )
    (found,) = [one for one in findings if one["result"] == "failure"]
    assert (found["check"], found["figure"]) == ("storage", "no answer within 4 s (--timeout-s)")
    assert found["advice"].startswith("the storage does not answer: look at the URL")


def test_a_command_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """While a check waits for a storage: its process ends, and what it wrote is gone or never was."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        environ = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.getsockname()[1]}", "AWS_ACCESS_KEY_ID": "nobody"}
        command = [sys.executable, "-m", "mjtrain", "doctor", "--gpu-ids", "None", "--log-root", "logs"]
        command += ["--checkpoint-url", "s3://bucket/run"]
        job = Job(command, tmp_path, {**environ, "AWS_SECRET_ACCESS_KEY": "a-well-kept-secret"})
        job.wait_for("\nlog root ")
        server.settimeout(patience(60))
        server.accept()[0].close()  # the check of the storage runs
        outcome = job.finish(job.kill(signal.SIGKILL))
    assert outcome.status == -signal.SIGKILL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stderr", "stdout"]


def test_a_file_system_that_hangs(tmp_path: Path) -> None:
    """A frozen file system keeps whoever writes in the kernel, as a dead NFS server does."""
    for program in ("mkfs.ext4", "fsfreeze", "losetup"):
        if shutil.which(program) is None:
            pytest.skip(f"needs the program {program}")
    image, place = tmp_path / "image", tmp_path / "logs"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(600 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=False)
    if mounted.returncode != 0:
        pytest.skip("loop devices are not allowed here")
    try:
        subprocess.run(["fsfreeze", "-f", str(place)], check=True)
        try:
            _, findings = doctor(place, "--log-root", str(place), "--timeout-s", "4", skip=SLOW - {"log-root"})
        finally:
            subprocess.run(["fsfreeze", "-u", str(place)], check=True)
        (found,) = [one for one in findings if one["result"] == "failure"]
        assert (found["check"], found["figure"]) == ("log root", "no answer within 4 s (--timeout-s)")
        assert found["advice"].startswith("the file system does not answer")
    finally:
        umount = ["umount", str(place)]
        wait_until(lambda: subprocess.run(umount, check=False, capture_output=True).returncode == 0, "it is unmounted")


def test_ranks_exchange_json_and_unpickle_nothing() -> None:
    """What arrives from another host is data."""

    def gather(context: RankContext) -> list[Any]:
        import torch.distributed.distributed_c10d as c10d

        from mjtrain.learning.collectives import Collectives

        def refuse(*_: object) -> None:
            raise AssertionError("unpickled")

        c10d._tensor_to_object = refuse  # what torch's gathering of objects calls
        return Collectives("cpu").gather_plain({"rank": context.rank, "pair": (1, None)}, context)

    gathered = mjtrain.launch(gather, launch=mjtrain.LaunchConfig(gpu_ids=None, num_workers=2))
    assert gathered == [{"rank": rank, "pair": [1, None]} for rank in range(2)]
