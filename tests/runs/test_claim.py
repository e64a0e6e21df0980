"""One process trains in a run directory: a lock that other hosts see, and what keeps a late writer out."""

import fcntl
import multiprocessing
import os
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.runs.checkpoint import checkpoint_path, find_valid_checkpoint, read_checkpoint, save_checkpoint
from mjtrain.runs.claim import (
    LOCK_FILE,
    RunTakenError,
    begin_start,
    check_claim,
    claim_run_dir,
    holds_claim,
    is_claimed,
    read_holder,
)
from mjtrain.runs.training_run import TrainingRun
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.event_log import end_recorded, read_lines
from mjtrain.runtime.files import is_locked, lock, open_lock_file
from mjtrain.training.train_rank import train_rank
from support.machine import patience

ONE = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)


def find_descriptors(path: Path) -> list[int]:
    """This process's open descriptors of a file."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        if entry.exists() and entry.samefile(path):
            found.append(int(entry.name))
    return found


def test_the_lock_is_that_of_a_file_open_for_writing_which_nfs_passes_on(tmp_path: Path) -> None:
    with claim_run_dir(tmp_path) as (session, _):
        (descriptor,) = find_descriptors(tmp_path / LOCK_FILE)
        assert stat.S_ISREG(os.fstat(descriptor).st_mode)
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        ask = struct.pack("hhqqi0q", fcntl.F_WRLCK, 0, 0, 0, 0)
        with (tmp_path / LOCK_FILE).open("rb+") as other:
            answer = struct.unpack("hhqqi0q", fcntl.fcntl(other, fcntl.F_OFD_GETLK, ask))
        assert (answer[0], answer[4]) == (fcntl.F_WRLCK, -1)  # a lock of an open file, not of a process
        holder = read_holder(tmp_path)
        assert holder is not None
        assert (holder.host, holder.pid, holder.session) == (os.uname().nodename, os.getpid(), session)
    assert not is_claimed(tmp_path)


def test_whoever_comes_second_reads_who_came_first(tmp_path: Path) -> None:
    with claim_run_dir(tmp_path):
        words = rf"another process is training there \(process {os.getpid()} on host {os.uname().nodename}, since 20"
        for _ in range(2):
            with pytest.raises(RequestError, match=words), claim_run_dir(tmp_path):
                pass
        assert is_claimed(tmp_path)


@pytest.mark.process
def test_the_claim_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, mjtrain.runs.claim as claim\n"
        "with claim.claim_run_dir(pathlib.Path(sys.argv[1])):\n"
        "    print('claimed', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"claimed\n"
        assert is_claimed(tmp_path)
        other.kill()
        other.wait()
    assert not is_claimed(tmp_path)


def test_the_claim_ends_although_a_fork_is_left(tmp_path: Path) -> None:
    with claim_run_dir(tmp_path):
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        process.start()
        assert is_claimed(tmp_path)
    try:
        assert not is_claimed(tmp_path)
    finally:
        process.kill()
        process.join()


def test_the_claim_ends_although_a_function_of_the_task_has_closed_its_file(tmp_path: Path) -> None:
    with claim_run_dir(tmp_path):
        (descriptor,) = find_descriptors(tmp_path / LOCK_FILE)
        os.close(descriptor)
    assert not is_claimed(tmp_path)


def test_a_fork_that_leaves_the_block_does_not_end_the_claim(tmp_path: Path) -> None:
    parent = os.getpid()
    try:
        with claim_run_dir(tmp_path):
            if (child := os.fork()) == 0:
                sys.exit()  # as a function of the task may
            os.waitpid(child, 0)
            assert is_claimed(tmp_path)
    finally:
        if os.getpid() != parent:
            os._exit(0)


def test_asking_never_takes_the_lock(tmp_path: Path) -> None:
    with claim_run_dir(tmp_path):
        pass
    over = threading.Event()
    watcher = threading.Thread(target=lambda: [is_claimed(tmp_path) for _ in iter(over.is_set, True)])
    watcher.start()
    try:
        for _ in range(300):
            with claim_run_dir(tmp_path):
                pass
    finally:
        over.set()
        watcher.join()


def test_a_refused_request_leaves_the_lock_file_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(RequestError), claim_run_dir(tmp_path):
        raise RequestError("no")
    assert not tmp_path.exists()  # it was empty, so it is that of a new run
    tmp_path.mkdir()
    (tmp_path / "file").touch()
    with claim_run_dir(tmp_path):
        pass
    before = (tmp_path / LOCK_FILE).read_bytes(), (tmp_path / LOCK_FILE).stat().st_mtime_ns
    with pytest.raises(RequestError), claim_run_dir(tmp_path):
        raise RequestError("no")
    assert ((tmp_path / LOCK_FILE).read_bytes(), (tmp_path / LOCK_FILE).stat().st_mtime_ns) == before


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / LOCK_FILE).symlink_to(victim)
    with pytest.raises(RequestError, match=r"\.lock cannot be written \(.*symbolic links"), claim_run_dir(run_dir):
        pass
    begin_start(run_dir, "session", 0)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "mode", "words"),
    [
        (".", 0o555, "is read-only; change its permissions, or resume a copy"),
        ("metrics.jsonl", 0, r"metrics\.jsonl may not be read; change its permissions"),
        ("params/env.yaml", 0, r"params/env\.yaml may not be read; change its permissions"),
    ],
)
def test_a_run_that_could_not_be_saved_is_refused(
    name: str, mode: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the last checkpoint of a long training would be lost."""
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # another user may not come here from the root
    user, other = os.geteuid(), 65534 if os.geteuid() == 0 else os.geteuid()  # root may write every file
    run_dir = Path("run")
    (run_dir / "params").mkdir(parents=True)
    for path in (run_dir / LOCK_FILE, run_dir / "metrics.jsonl", run_dir / "params" / "env.yaml"):
        path.write_text("")
    for path in (*run_dir.rglob("*"), run_dir):
        os.chown(path, other, -1)
    (run_dir / name).chmod(mode)
    try:
        os.seteuid(other)
        with pytest.raises(RequestError, match=f"^--resume run: {words}$"), claim_run_dir(run_dir):
            pass
    finally:
        os.seteuid(user)
        (run_dir / name).chmod(0o755)


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is at hand here, so the lock is asked of what has none: the kernel refuses with EBADF."""
    from mjtrain.runs import claim

    path_only = os.open(tmp_path, os.O_PATH)
    monkeypatch.setattr(claim, "lock", lambda descriptor: lock(path_only))
    with claim_run_dir(tmp_path) as (_, (line,)):
        pass
    os.close(path_only)
    assert f"{tmp_path} is on a file system without locks" in line


def test_damage_to_the_lock_file_ends_no_training(tmp_path: Path) -> None:
    check_claim(tmp_path, "mine")
    for content in (b"", b"{}", b"[" * 900, b'{"host": 1}', b"\xff\xfe"):
        (tmp_path / LOCK_FILE).write_bytes(content)
        check_claim(tmp_path, "mine", 0)
    begin_start(tmp_path, "mine", 2)
    check_claim(tmp_path, "mine", 2)
    with pytest.raises(RunTakenError, match="a later start of this job trains here now"):
        check_claim(tmp_path, "mine", 1)


STATE: dict[str, Any] = {}


def sleeping(env: Any) -> torch.Tensor:
    """A reward in whose third iteration this host sleeps, while another job, or a later start, takes over."""
    STATE["steps"] += 1
    if STATE["steps"] == 18:
        begin_start(STATE["run_dir"], STATE["session"], 1)
    return torch.ones(env.num_envs)


@pytest.mark.parametrize("session", ["another", "mine"])
def test_a_job_that_lost_its_directory_saves_nothing_there(tmp_path: Path, session: str) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    STATE.update(steps=0, run_dir=run_dir, session=session)
    config = make_train_config("Cartpole-Balance", num_envs=4, logger="none", max_iterations=4)
    assert isinstance(config.env, mjtrain.EnvConfig)
    env = replace(config.env, rewards={"sleeping": mjtrain.RewardTerm(func=sleeping, weight=1.0)})
    agent = replace(config.agent, save_interval=1, num_steps_per_env=8)
    run = TrainingRun(run_dir=run_dir, session="mine")
    with pytest.raises(RunTakenError, match="trains here now, so this"):
        mjtrain.launch(train_rank, replace(config, env=env, agent=agent), run, launch=ONE)
    assert find_valid_checkpoint(run_dir)[0] == checkpoint_path(run_dir, 2)
    assert not list(run_dir.glob(".*.partial"))


def test_the_end_of_a_job_that_lost_its_directory_is_not_recorded_there(tmp_path: Path) -> None:
    begin_start(tmp_path, "mine", 0)
    with end_recorded(tmp_path, partial(holds_claim, tmp_path, "mine")):
        pass
    assert [row["event"] for row in read_lines(tmp_path)] == ["end"]
    begin_start(tmp_path, "another", 0)
    with pytest.raises(OSError, match="lost"), end_recorded(tmp_path, partial(holds_claim, tmp_path, "mine")):
        raise OSError("lost")
    assert [row["event"] for row in read_lines(tmp_path)] == ["end"]


def write_often(run_dir: Path, number: int, begin: Any) -> None:
    torch.set_num_threads(1)  # the threads of the parent are not here
    content = {"weights": torch.full((30_000,), float(number))}
    begin.wait()
    for _ in range(25):
        save_checkpoint(checkpoint_path(run_dir, 5), content)


def test_two_writers_of_one_checkpoint_never_damage_it(tmp_path: Path) -> None:
    processes = multiprocessing.get_context("fork")
    begin = processes.Barrier(3)
    writers = [processes.Process(target=write_often, args=(tmp_path, number, begin)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    begin.wait(patience(60.0))
    path = checkpoint_path(tmp_path, 5)
    while any(writer.is_alive() for writer in writers):
        if path.exists():
            read_checkpoint(path)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_file_is_made_once_and_asked_without_writing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    one, other = open_lock_file(path), open_lock_file(path)
    assert lock(one, shared=True)
    assert lock(other, shared=True)
    assert is_locked(path)
    os.close(one)
    assert lock(other)
    os.close(other)
    assert not is_locked(path)
    assert path.read_bytes() == b""


def _make_pipe(path: Path) -> None:
    os.mkfifo(path)


def _make_circle(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("place", "make", "words"),
    [
        (".lock", _make_pipe, ".lock is not a regular file; remove it"),
        ("metrics.jsonl", _make_pipe, "metrics.jsonl is not a regular file; remove it"),
        ("metrics.jsonl", _make_circle, "metrics.jsonl is not a regular file; remove it"),
        ("metrics.jsonl", Path.mkdir, "metrics.jsonl is not a regular file; remove it"),
        ("params/launch.yaml", _make_pipe, "params/launch.yaml is not a regular file; remove it"),
        ("code/task.py", Path.mkdir, "code/task.py is not a regular file; remove it"),
        ("code", _make_circle, "code is not a folder; remove it"),
        ("code", Path.touch, "code is not a folder; remove it"),
        ("params", _make_circle, "params is not a folder; remove it"),
        ("robot", _make_circle, "robot is not a folder; remove it"),
        ("robot", Path.touch, "robot is not a folder; remove it"),
    ],
)
def test_something_else_in_the_place_of_a_file_is_named(
    place: str, make: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    """Before, a pipe kept the command waiting, and the others ended with a traceback."""
    (tmp_path / place).parent.mkdir(exist_ok=True)
    make(tmp_path / place)
    with pytest.raises(RequestError) as error, claim_run_dir(tmp_path):
        pass
    assert str(error.value) == f"--resume {tmp_path}: {words}"


def test_metrics_may_be_a_link_to_a_file_that_is_not_made_yet(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    with claim_run_dir(tmp_path):
        pass
