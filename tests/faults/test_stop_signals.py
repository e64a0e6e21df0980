"""Signals to the launcher: the first lets the job finish, the second ends it, SIGKILL leaves no process."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from mjtrain.runs.checkpoint import find_valid_checkpoint
from mjtrain.runs.history import read_last_row
from support.jobs import Job, Record, function, training
from support.machine import read_proc, wait_until
from support.promises import promised

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
QUICK_S = 4.5
"""Less than any of the times that a launcher gives processes to end by themselves."""

NEVER_ENDING = ["--max-iterations", "100000"]


def run_dir(folder: Path) -> Path:
    (found,) = folder.glob("logs/*/*")
    return found


def find_reaper(job: Job) -> int:
    return next(pid for pid in job.processes() if b"mjtrain.launcher.job.reaper" in read_proc(pid, "cmdline"))


@pytest.mark.parametrize("signum", [*SIGNALS, signal.SIGKILL], ids=lambda signum: signum.name)
def test_at_the_start(tmp_path: Path, record: Record, signum: signal.Signals) -> None:
    job = function(tmp_path, "none", exec_it=True)
    job.wait_for_processes(3)  # launcher, reaper, spawner
    outcome = job.finish(job.kill(signum))
    # As everywhere in Python, Ctrl-C on a program of one's own ends it by that very signal.
    assert outcome.status == (-signum if signum in (signal.SIGINT, signal.SIGKILL) else 128 + signum)
    record(signum.name, "launcher, at the start", outcome, last_words="")


@pytest.mark.parametrize("signum", SIGNALS, ids=lambda signum: signum.name)
def test_in_the_middle_a_function_that_asks_saves_first(tmp_path: Path, record: Record, signum: signal.Signals) -> None:
    job = function(tmp_path, "save_when_asked")
    job.wait_for("at work")
    since = job.kill(signum)
    assert job.wait_until_alone() - since < promised(QUICK_S), "all signals are equally quick"
    outcome = job.finish(since)
    assert outcome.status == (-signum if signum == signal.SIGINT else 128 + signum)
    assert (tmp_path / "saved").exists()
    record(signum.name, "launcher, in the middle", outcome, last_words=f"{signum.name}: finishing this iteration, …")


def test_sigkill_in_the_middle(tmp_path: Path, record: Record) -> None:
    job = function(tmp_path, "none", FAULT_GRANDCHILD="1", ranks=3, exec_it=True)
    job.wait_for("rank 0 works")
    outcome = job.finish(job.kill(signal.SIGKILL))
    assert outcome.status == -signal.SIGKILL
    record("SIGKILL", "launcher, in the middle, with daemons that ignore SIGTERM", outcome, last_words="")


def test_sigkill_of_launcher_and_reaper(tmp_path: Path, record: Record) -> None:
    """No process is left to clean up except the kernel."""
    job = function(tmp_path, "none", exec_it=True)
    job.wait_for("rank 0 works")
    reaper = find_reaper(job)
    now = time.time()
    os.kill(job.process.pid, signal.SIGSTOP)  # it must not get the chance to do it instead
    os.kill(reaper, signal.SIGKILL)
    job.process.kill()
    record("SIGKILL", "launcher and reaper", job.finish(now), last_words="")


def test_sigkill_of_the_reaper_alone(tmp_path: Path, record: Record) -> None:
    job = function(tmp_path, "none", FAULT_GRANDCHILD="1", exec_it=True)
    job.wait_for("rank 0 works")
    reaper = find_reaper(job)
    now = time.time()
    os.kill(reaper, signal.SIGKILL)
    outcome = job.finish(now)
    assert outcome.status == 1
    record("SIGKILL", "reaper", outcome, last_words=outcome.last_block.splitlines()[0].removeprefix("FAILED: "))


def test_a_training_saves_in_the_middle(tmp_path: Path, record: Record) -> None:
    job = training(tmp_path, *NEVER_ENDING, "--agent.save-interval", "100000")
    job.wait_for("iteration 3/")
    os.killpg(job.process.pid, signal.SIGINT)  # as a terminal does
    outcome = job.finish(time.time())
    assert outcome.status == 130
    last = int(outcome.stdout.splitlines()[-1].split()[1].partition("/")[0])
    checkpoint, _ = find_valid_checkpoint(run_dir(tmp_path))
    assert checkpoint is not None
    assert checkpoint.name == f"model_{last}.pt"
    assert outcome.stderr.splitlines()[-1] == "train: stopped by SIGINT"
    record("SIGINT", "process group of a training", outcome, last_words="train: stopped by SIGINT")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL], ids=lambda signum: signum.name)
def test_while_a_training_saves(tmp_path: Path, record: Record, signum: signal.Signals) -> None:
    slow = ["--inject-fault", "rank=0,phase=save,kind=slow,seconds=1.5"]
    job = training(tmp_path, *NEVER_ENDING, "--drift-check-interval", "0", *slow, exec_it=True)
    job.wait_for("injecting fault rank=0,phase=save", "stderr")
    outcome = job.finish(job.kill(signum))
    assert outcome.status == (-signum if signum == signal.SIGKILL else 128 + signum)
    checkpoint, problems = find_valid_checkpoint(run_dir(tmp_path))
    assert problems == []
    if signum != signal.SIGKILL:
        assert checkpoint is not None
        record(signum.name, "launcher, while it saves", outcome, last_words=outcome.stderr.splitlines()[-1])
    else:
        record(signum.name, "launcher, while it saves", outcome, last_words="")


def test_a_signal_to_every_process_is_one_request(tmp_path: Path, record: Record) -> None:
    """As a scheduler does it. A rank passes its signal on; that of the launcher itself, later, is not a second one."""
    job = function(tmp_path, "save_when_asked", FAULT_SLOW_SAVE="1")
    job.wait_for("at work")
    for pid in job.processes():
        if pid != job.process.pid:
            os.kill(pid, signal.SIGTERM)
    job.wait_for("finishing this iteration", "stderr")
    outcome = job.finish(job.kill(signal.SIGTERM))
    assert outcome.status == 143
    assert (tmp_path / "saved").exists()
    record("SIGTERM", "every process of a job", outcome, last_words="SIGTERM: finishing this iteration, …")


def test_the_second_signal_is_the_end(tmp_path: Path, record: Record) -> None:
    job = function(tmp_path, "save_when_asked", FAULT_SLOW_SAVE="60")
    job.wait_for("at work")
    job.kill(signal.SIGTERM)
    job.wait_for("finishing this iteration", "stderr")
    outcome = job.finish(job.kill(signal.SIGTERM))
    assert outcome.status == 143
    assert not (tmp_path / "saved").exists()
    record("SIGTERM, twice", "launcher, while a rank saves forever", outcome, last_words="")


def test_the_grace_time_is_the_end(tmp_path: Path, record: Record) -> None:
    job = function(tmp_path, "save_when_asked", FAULT_SLOW_SAVE="60", FAULT_GRACE="2")
    job.wait_for("at work")
    outcome = job.finish(job.kill(signal.SIGTERM))
    assert outcome.status == 1
    assert outcome.noticed_s > 2.0
    assert not (tmp_path / "saved").exists()
    last_words = outcome.stderr.splitlines()[-1]
    assert last_words == "stopped by SIGTERM, but not saved within 2 s (--stop-grace-s)"
    where = "launcher, while a rank saves forever; grace 2 s"
    record("SIGTERM", where, outcome, last_words=last_words, patience_s=2.0)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_training_that_has_not_saved_in_time_says_so_and_is_requeued(tmp_path: Path, ranks: int) -> None:
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f"#!/bin/sh\necho $* >> {tmp_path}/requeued\n")
    scontrol.chmod(0o755)
    path = f"{scontrol.parent}:{os.environ['PATH']}"
    flags = ["--agent.save-interval", "2", "--stop-grace-s", "1", "--requeue-on-signal"]
    fault = ["--inject-fault", "rank=0,phase=save,iteration=4,kind=slow,seconds=60"]
    job = training(tmp_path, *NEVER_ENDING, *flags, *fault, ranks=ranks, SLURM_JOB_ID="42", PATH=path)
    job.wait_for("injecting fault", "stderr")
    outcome = job.finish(job.kill(signal.SIGTERM))
    assert outcome.status == 1
    place = run_dir(tmp_path)
    words = "stopped by SIGTERM, but not saved within 1 s (--stop-grace-s); the last checkpoint is "
    last = outcome.stderr.splitlines()[-1].removeprefix("train: ")
    assert last.startswith(words)
    assert (tmp_path / last.removeprefix(words)).samefile(place / "model_2.pt")
    end = json.loads((place / "metrics.jsonl").read_text().splitlines()[-1])
    assert (end["event"], end["how"], end["cause"]) == ("end", "failed", last)
    assert (tmp_path / "requeued").read_text() == "requeue 42\n"


def test_a_training_without_a_reader_saves_when_it_is_stopped(tmp_path: Path) -> None:
    """As in `train TASK | tee log`, where Ctrl-C ends tee as well."""
    unread = ("bash", "-c", '"$@" | true; exit ${PIPESTATUS[0]}', "bash")
    job = training(tmp_path, *NEVER_ENDING, "--agent.save-interval", "100000", ranks=1, prefix=unread)
    wait_until(lambda: last_iteration(tmp_path) >= 3, "the training has done three iterations")
    (pid,) = [pid for pid in job.processes() if b"python" in read_proc(pid, "cmdline").split(b"\0")[0]]
    os.kill(pid, signal.SIGINT)
    outcome = job.finish(time.time())
    assert outcome.status == 130
    assert outcome.stderr.splitlines()[-1] == "train: stopped by SIGINT"
    checkpoint, _ = find_valid_checkpoint(run_dir(tmp_path))
    assert checkpoint == run_dir(tmp_path) / f"model_{last_iteration(tmp_path)}.pt"


def last_iteration(folder: Path) -> int:
    files = list(folder.glob("logs/*/*/metrics.jsonl"))
    return read_last_row(files[0].parent).get("iteration", 0) if files else 0


def test_in_the_background_with_sigint_ignored(tmp_path: Path) -> None:
    job = function(tmp_path, "save_when_asked", prefix=("sh", "-c", 'trap "" INT; exec "$@"', "sh"))
    job.wait_for("at work")
    outcome = job.finish(job.kill(signal.SIGINT))
    assert outcome.status in (-signal.SIGINT, 130)
    assert (tmp_path / "saved").exists()


def test_under_nohup_sighup_does_not_count(tmp_path: Path) -> None:
    """It is not even the first request: SIGTERM after it lets the job save."""
    job = function(tmp_path, "save_when_asked", prefix=("nohup",))
    job.wait_for("at work")
    job.kill(signal.SIGHUP)
    outcome = job.finish(job.kill(signal.SIGTERM))
    assert outcome.status == 143
    assert (tmp_path / "saved").exists()
    assert "SIGTERM: finishing this iteration" in outcome.stderr
    assert "SIGHUP" not in outcome.stderr


def test_one_process_saves_too(tmp_path: Path) -> None:
    signum = signal.SIGTERM
    job = training(tmp_path, *NEVER_ENDING, ranks=1)
    job.wait_for("iteration 3/")
    outcome = job.finish(job.kill(signum))
    assert outcome.status == 128 + signum
    last = int(outcome.stdout.splitlines()[-1].split()[1].partition("/")[0])
    checkpoint, _ = find_valid_checkpoint(run_dir(tmp_path))
    assert checkpoint is not None
    assert checkpoint.name == f"model_{last}.pt"


def test_nothing_listens_and_no_secret_shows(tmp_path: Path) -> None:
    """Two jobs at once: neither listens on anything but loopback, and no argument of a process holds a secret."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    jobs = [function(folder, "none", exec_it=True, WANDB_API_KEY="a-well-kept-secret") for folder in folders]
    try:
        for job in jobs:
            job.wait_for("rank 0 works")
        for job in jobs:
            assert {address for address, _ in job.listening()} <= {"0100007F"}  # 127.0.0.1
            for pid in job.processes():
                assert b"a-well-kept-secret" not in read_proc(pid, "cmdline")
    finally:
        outcomes = [job.finish(job.kill(signal.SIGTERM)) for job in jobs]
    assert [outcome.status for outcome in outcomes] == [143, 143]


def test_a_function_that_never_asks_is_interrupted(tmp_path: Path, record: Record) -> None:
    """It has time to clean up; the launcher does not wait any longer than the clean-up takes."""
    job = function(tmp_path, "none")
    job.wait_for("rank 0 works")
    since = job.kill(signal.SIGTERM)
    assert job.wait_until_alone() - since < promised(QUICK_S)
    outcome = job.finish(since)
    assert outcome.status == 143
    assert all((tmp_path / f"cleaned_up_{rank}").exists() for rank in range(2))
    record("SIGTERM", "launcher, in the middle of a function that never asks", outcome, last_words="")


def test_a_rank_that_waits_for_an_interrupted_one_is_interrupted_too(tmp_path: Path, record: Record) -> None:
    """It is in native code, where no signal reaches Python, until the other one gives its connections up."""
    job = function(tmp_path, "wait_apart")
    for rank in range(2):
        job.wait_for_file(tmp_path / f"at_work_{rank}")
    time.sleep(0.5)  # rank 1 enters the collective
    since = job.kill(signal.SIGTERM)
    assert job.wait_until_alone() - since < promised(QUICK_S)
    outcome = job.finish(since)
    assert outcome.status == 143
    assert all((tmp_path / f"cleaned_up_{rank}").exists() for rank in range(2))
    record("SIGTERM", "launcher, while a rank waits for another in a collective", outcome, last_words="")
