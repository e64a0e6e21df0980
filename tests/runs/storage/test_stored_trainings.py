"""Real trainings with real uploads: what they leave in the storage is what --resume continues with."""

import io
import json
import os
import re
import shutil
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.runs.checkpoint import find_valid_checkpoint, load_checkpoint
from mjtrain.runs.resume import _is_of_run, preview_run
from mjtrain.runs.run_dir import load_params, save_params
from mjtrain.runs.storage.checkpoints import fetch_checkpoint, find_stored_iteration, object_name
from mjtrain.runs.storage.store import Storage, StorageError
from mjtrain.runs.training_run import TrainingRun
from mjtrain.runtime.errors import OutsideError, RequestError
from mjtrain.training.train_rank import train_rank
from support.frozen import full_disk
from support.machine import free_port, patience
from support.storage import Proxy, Training

ONE = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
SAVE_OFTEN = ["--agent.save-interval", "2", "--drift-check-interval", "0"]


def train(log_root: Path, iterations: int, **options: Any) -> Any:
    return mjtrain.train(
        "Cartpole-Balance", num_envs=4, max_iterations=iterations, log_root=str(log_root), logger="none", launch=ONE,
        **options,
    )  # fmt: skip


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row.get("event") not in (None, "end")]


def fetch(url: str, folder: Path) -> tuple[Path, list[str]]:
    folder.mkdir()
    path, lines = fetch_checkpoint(url, folder)
    assert path is not None
    assert load_checkpoint(path, "cpu")["iter"] > 0
    return path, lines


@pytest.fixture
def stored(url: str, tmp_path: Path) -> str:
    """A run of four iterations that is nowhere but in the storage."""
    train(tmp_path / "home", 4, checkpoint_url=url)
    (tmp_path / "home").rename(tmp_path / "lost")
    return url


def test_resume_from_anywhere_is_bit_for_bit(stored: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    straight = train(tmp_path / "straight", 8)
    resumed = train(tmp_path / "elsewhere", 8, resume=stored, checkpoint_url=stored)
    assert resumed.run_dir.parent == tmp_path / "elsewhere" / "cartpole_balance"
    one, other = (load_checkpoint(run.checkpoint, "cpu") for run in (straight, resumed))
    for part in ("actor_state_dict", "critic_state_dict"):
        for name, value in one[part].items():
            assert torch.equal(value, other[part][name]), name
    said = capfd.readouterr().err
    assert f"downloaded from {stored}" in said
    assert "changed since" not in said
    assert find_stored_iteration(stored) == 8
    events = read_events(resumed.run_dir)
    uploads = [(row["event"], row["iteration"]) for row in events]
    assert uploads in ([("uploaded", 4), ("uploaded", 8)], [("uploaded", 8)])  # one that waits gives way to a newer one


def test_auto_goes_on_with_whatever_is_newest(stored: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def auto(iterations: int, log_root: str = "new") -> Any:
        return train(tmp_path / log_root, iterations, resume="auto", checkpoint_url=stored)

    first = auto(6)
    assert f"downloaded from {stored}" in capfd.readouterr().err
    assert auto(8).run_dir == first.run_dir  # as far as the storage, and here
    assert "downloaded" not in capfd.readouterr().err
    done = auto(8, "third")
    assert "0 iterations left" in capfd.readouterr().err
    assert done.checkpoint.name == "model_8.pt"
    other = train(tmp_path / "new", 2, resume="auto")  # a command without the URL has begun nothing
    assert "--resume auto: nothing to resume" in capfd.readouterr().err
    assert other.run_dir != first.run_dir


def test_auto_goes_on_here_where_what_is_newer_in_the_storage_is_damaged(
    stored: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = train(tmp_path / "here", 6, resume="auto", checkpoint_url=stored)
    Storage(stored).upload(object_name(9, "ab" * 32), io.BytesIO(b"damaged"))
    capfd.readouterr()
    again = train(tmp_path / "here", 7, resume="auto", checkpoint_url=stored)
    assert again.run_dir == first.run_dir
    assert f"passed over {stored}/model_9-" in capfd.readouterr().err
    assert [run.name for run in again.run_dir.parent.iterdir()] == [first.run_dir.name]
    assert find_valid_checkpoint(again.run_dir)[0] == again.run_dir / "model_7.pt"


def test_a_resumed_run_stores_nothing_in_the_place_of_another(tmp_path: Path) -> None:
    """At the place of a run of the same task; a vacant place, and its previous place from a copy, are allowed."""

    def place(name: str) -> str:
        return f"file://{tmp_path}/{name}"

    mine = train(tmp_path / "logs", 1, checkpoint_url=place("mine")).run_dir
    train(tmp_path / "logs", 1, checkpoint_url=place("theirs"), run_name="theirs")
    before = {path: path.read_bytes() for path in (tmp_path / "theirs").rglob("*") if path.is_file()}
    for resume in (str(mine), place("mine")):
        with pytest.raises(RequestError, match=r"--checkpoint-url \S*theirs: another run with 1 iteration is there;"):
            train(tmp_path / "logs", 2, resume=resume, checkpoint_url=place("theirs"))
    asked = make_train_config("Cartpole-Balance", max_iterations=2, resume=str(mine), checkpoint_url=place("theirs"))
    with pytest.raises(RequestError, match="another run with 1 iteration is there"):
        preview_run(asked)
    assert {path: path.read_bytes() for path in (tmp_path / "theirs").rglob("*") if path.is_file()} == before
    assert len(list((tmp_path / "logs").glob("*/*"))) == 2

    train(tmp_path / "logs", 2, resume=str(mine), checkpoint_url=place("vacant"))
    copy = mine.rename(mine.with_name("renamed"))
    train(tmp_path / "logs", 3, resume=str(copy), checkpoint_url=place("mine"))
    fetched = train(tmp_path / "elsewhere", 4, resume=place("mine"), checkpoint_url=place("mine")).run_dir
    assert [find_stored_iteration(place(name)) for name in ("mine", "vacant")] == [4, 2]
    train(tmp_path / "logs", 5, resume=str(copy), checkpoint_url=place("mine"))  # where its copy has stored since
    begun = {load_params(run_dir, "launch")["begun"] for run_dir in (copy, fetched)}
    assert len(begun) == 1


def test_runs_without_a_recorded_start_are_compared_by_their_task(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    save_params(tmp_path / "a", launch={"task": "Cartpole-Balance"})
    assert _is_of_run({"task": "Cartpole-Balance"}, tmp_path / "a")
    assert not _is_of_run({"task": "Cartpole-Swingup", "started": "2026-01-01T00:00:00+00:00"}, tmp_path / "a")
    assert _is_of_run({}, tmp_path / "a")


def test_a_rank_0_that_comes_to_an_empty_machine_goes_on(stored: str, tmp_path: Path) -> None:
    """As after torchrun's restart, when the host that rank 0 was on is gone with its files."""
    config = make_train_config("Cartpole-Balance", num_envs=4, max_iterations=6, checkpoint_url=stored, logger="none")

    def on_another_machine(context: mjtrain.RankContext) -> Any:
        return train_rank(replace(context, restarts=1), config, TrainingRun(run_dir=tmp_path))

    assert mjtrain.launch(on_another_machine, launch=ONE).checkpoint == tmp_path / "model_6.pt"
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows if "event" not in row] == [1, 2, 3, 4, 5, 6]


def test_a_rank_0_that_comes_back_to_an_old_disk_goes_on_with_the_newer_checkpoint(tmp_path: Path) -> None:
    """Unless another run has taken the URL since."""
    url = f"file://{tmp_path}/store"
    old = train(tmp_path / "home", 2, checkpoint_url=url)
    train(tmp_path / "home", 4, resume=str(old.run_dir), checkpoint_url=url)
    config = make_train_config("Cartpole-Balance", num_envs=4, max_iterations=5, checkpoint_url=url, logger="none")
    for name, iterations in ((old.run_dir.name, [1, 2, 3, 4, 5]), ("another", [3, 4, 5])):
        run_dir = tmp_path / "back" / name
        run_dir.mkdir(parents=True)
        shutil.copy(old.checkpoint, run_dir)
        run = TrainingRun(run_dir=run_dir, record={"plan": {"mode": "hosts"}})

        def come_back(context: mjtrain.RankContext, run: TrainingRun = run) -> Any:
            return train_rank(replace(context, restarts=1), config, run)

        mjtrain.launch(come_back, launch=ONE)
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        assert [row["iteration"] for row in rows if "event" not in row] == iterations


def test_a_disk_without_room_for_what_is_fetched_is_named_and_left_as_it_was(tmp_path: Path) -> None:
    """Also by a rank on another machine."""
    url, there = f"file://{tmp_path}/store", tmp_path / "there"
    train(tmp_path / "home", 1, checkpoint_url=url)
    there.mkdir()
    for resume in (url, "auto"):
        with (
            full_disk(room=20_000),  # a checkpoint has more
            pytest.raises(OutsideError, match=rf"^{there}/\S*: cannot be written \(File too large\)$"),
        ):
            train(there, 2, resume=resume, checkpoint_url=url)
        assert list(there.iterdir()) == []
    config = make_train_config("Cartpole-Balance", num_envs=4, max_iterations=2, checkpoint_url=url, logger="none")
    run = TrainingRun(run_dir=there)
    with full_disk(room=20_000), pytest.raises(RuntimeError, match=rf"{there}: cannot be written \(File too large\)"):
        mjtrain.launch(lambda context: train_rank(replace(context, restarts=1), config, run), launch=ONE)


def test_a_host_of_rank_0_that_lacks_the_resumed_run_is_named(tmp_path: Path) -> None:
    config = make_train_config("Cartpole-Balance", num_envs=4, max_iterations=6, logger="none")
    run = TrainingRun(run_dir=tmp_path, resume=str(tmp_path), iteration=4)
    words = (
        f"the run has 4 iterations, and host {socket.gethostname()}, where rank 0 is, has 0 of them; .*--checkpoint-url"
    )
    with pytest.raises(RequestError, match=words):
        mjtrain.launch(lambda context: train_rank(context, config, run), launch=ONE)
    assert not list(tmp_path.iterdir())


def test_a_url_that_can_never_work_is_refused(network: Proxy, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for url, words in (
        ("s3://no-such-bucket/x", "the bucket does not exist"),
        (f"file://{tmp_path}/file/below", "Not a directory"),
    ):
        for resume in (None, "auto"):
            with pytest.raises(RequestError, match=rf"--checkpoint-url {url}: .*{words}"):
                train(tmp_path / "logs", 4, resume=resume, checkpoint_url=url)
    run_dir = train(tmp_path / "here", 2).run_dir
    before = sorted(path.name for path in run_dir.iterdir())
    with pytest.raises(RequestError, match=r"--checkpoint-url s3://no-such-bucket/x: .*the bucket does not exist"):
        train(tmp_path / "here", 4, resume=str(run_dir), checkpoint_url="s3://no-such-bucket/x")
    assert sorted(path.name for path in run_dir.iterdir()) == before
    assert not list(tmp_path.glob("logs/*/*"))


def test_a_resumed_run_has_its_whole_history(stored: str, tmp_path: Path) -> None:
    resumed = train(tmp_path / "elsewhere", 6, resume=stored, checkpoint_url=stored)
    assert [int(value) for value in mjtrain.Run(resumed.run_dir).metrics["iteration"]] == [1, 2, 3, 4, 5, 6]


def test_what_a_storage_makes_impossible_is_refused(stored: str, network: Proxy, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--checkpoint-url s3://.*: a run with 4 iterations is there"):
        train(tmp_path, 8, checkpoint_url=stored)
    with pytest.raises(RequestError, match=r"--max-iterations 4: the run has 4 already"):
        train(tmp_path, 4, resume=stored)
    with pytest.raises(RequestError, match=r"--total-env-steps 9: the run has [0-9]+ already; ask for more"):
        train(tmp_path, 4, resume=stored, total_env_steps=9)
    with pytest.raises(RequestError, match=r"--resume s3://.*/empty: no checkpoint found"):
        train(tmp_path, 8, resume=f"{stored}/empty")
    with pytest.raises(RequestError, match=r"is of task Cartpole-Balance, and this is Cartpole-Swingup"):
        mjtrain.train("Cartpole-Swingup", num_envs=4, resume=stored, log_root=str(tmp_path), launch=ONE, logger="none")
    network.up = False
    for resume in (stored, "auto"):
        with pytest.raises(StorageError):
            train(tmp_path / "new", 8, resume=resume, checkpoint_url=stored)
    assert not list((tmp_path / "new").glob("*/*"))


def test_a_dead_server_ends_no_training(url: str, network: Proxy, tmp_path: Path) -> None:
    network.up = False
    flush_s = f"{patience(0.5):g}"
    flags = ["--checkpoint-url", url, "--checkpoint-flush-s", flush_s]
    job = Training(tmp_path, "--max-iterations", "4", *SAVE_OFTEN, *flags)
    job.finish(1)
    assert f"--checkpoint-url {url}: not reached yet" in job.stderr
    assert f"train: model_4.pt was not uploaded to {url}" in job.stderr
    assert "could not be uploaded" in job.stdout
    assert f"model_4.pt was not uploaded to {url}: not done within {flush_s} s" in job.stdout
    assert find_valid_checkpoint(job.run_dir)[0] == job.run_dir / "model_4.pt"
    assert {row["event"] for row in read_events(job.run_dir)} == {"upload_failed", "upload_given_up"}
    network.up = True  # what could not be uploaded then is uploaded now
    train(tmp_path, 5, checkpoint_url=url, resume=str(job.run_dir), checkpoint_flush_s=patience(60.0))
    assert find_stored_iteration(url) == 5


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_uploads_the_last_checkpoint(url: str, tmp_path: Path, workers: str) -> None:
    job = Training(tmp_path, "--max-iterations", "100000", "--num-workers", workers, "--checkpoint-url", url)
    job.wait_until(lambda: "iteration 3/" in job.stdout)
    job.process.send_signal(signal.SIGTERM)
    job.finish(143)
    last = int(job.stdout.splitlines()[-1].split()[1].partition("/")[0])
    path, lines = fetch(url, tmp_path / "there")
    assert (path.name, lines) == (f"model_{last}.pt", [])


def test_kill_9_during_an_upload(url: str, network: Proxy, tmp_path: Path) -> None:
    """The whole job dies while another checkpoint is on the way: the first is what the storage knows."""
    flags = [*SAVE_OFTEN, "--checkpoint-url", url]
    Training(tmp_path / "one", "--max-iterations", "2", *flags).finish(0)
    network.stall_on = re.compile(rb"model_(?!2-)")  # model_4, or a newer one in its place
    job = Training(tmp_path / "one", "--max-iterations", "100000", *flags, "--resume")
    job.wait_until(network.stalled.is_set)
    os.killpg(job.process.pid, signal.SIGKILL)
    job.finish(-signal.SIGKILL)
    assert network.dropped.wait(patience(10.0))  # the process that uploads has gone with it
    network.stall_on = None
    path, lines = fetch(url, tmp_path / "there")
    assert (path.name, lines) == ("model_2.pt", [])
    train(tmp_path / "two", 4, checkpoint_url=url, resume="auto")
    assert fetch(url, tmp_path / "again")[0].name == "model_4.pt"


def test_ranks_that_others_started_hear_that_rank_0_cannot_reach_the_storage(
    url: str, network: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 alone asks the storage; the other would wait for its decision for --connect-timeout-s."""
    network.up = False
    port = free_port()
    jobs = []
    for rank in ("0", "1"):
        world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        for name, value in {**world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
            monkeypatch.setenv(name, value)
        jobs.append(Training(tmp_path / rank, "--checkpoint-url", url, "--resume", "auto"))
    for job in jobs:
        job.finish(1)
    assert "rank 0 could not begin: " in jobs[1].stderr
    assert not list(tmp_path.glob("*/logs/*"))


KILLED_TASK = """
import os, signal, time
from dataclasses import replace
from pathlib import Path
import torch
from mjtrain import RewardTerm
from mjtrain.env.catalog import load_task

STEPS = 0

def wait_for(file):
    while not Path(file).exists():
        time.sleep(0.02)

def deadly(env):
    global STEPS
    STEPS += 1
    marker = Path("killed")
    if os.environ.get("RANK") == "0":
        if STEPS == 20 and not marker.exists():  # in the third iteration
            wait_for("kill")
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if STEPS == 1 and marker.exists():
            wait_for("go_on")
    return torch.ones(env.num_envs)

def make():
    task = load_task("Cartpole-Balance")
    return replace(task, env=replace(task.env, rewards={"deadly": RewardTerm(func=deadly, weight=1.0)}))
"""


def test_a_restart_uploads_what_the_killed_rank_could_not(url: str, network: Proxy, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(KILLED_TASK)
    network.stall_on = re.compile(b"model_2-")
    job = Training(
        tmp_path, "--max-iterations", "4", "--num-workers", "2", "--max-restarts", "1", "--checkpoint-url", url,
        *SAVE_OFTEN, task="mine.py:make",
    )  # fmt: skip
    job.wait_until(network.stalled.is_set)
    (tmp_path / "kill").touch()
    assert network.dropped.wait(patience(30.0))
    network.stall_on = None
    job.wait_until(lambda: find_stored_iteration(url) == 2)  # a newer checkpoint would be uploaded in its place
    (tmp_path / "go_on").touch()
    job.finish(0)
    assert re.search("restart 1 of 1 in .* s, from iteration 2", job.stderr)
    path, lines = fetch(url, tmp_path / "there")
    assert (path.name, lines) == ("model_4.pt", [])
    events = [(row["event"], row["iteration"]) for row in read_events(job.run_dir)]
    assert events == [("restart", 2), ("uploaded", 2), ("uploaded", 4)]
