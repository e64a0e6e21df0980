"""Uploads beside a training: never in its way, never for ever, and nothing is lost where the network is bad."""

import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mjtrain.runs.checkpoint import (
    BEST_FILE,
    BestCheckpoint,
    checkpoint_path,
    load_checkpoint,
    parse_best,
    read_best,
    save_checkpoint,
    write_best,
)
from mjtrain.runs.storage.checkpoints import (
    TakenError,
    check_owner,
    fetch_checkpoint,
    find_stored_iteration,
    read_owner,
    take_url,
)
from mjtrain.runs.storage.store import Storage, StorageError, StorageRefusedError
from mjtrain.runs.storage.uploader import Uploader, UploadEvent
from support.machine import patience, wait_until
from support.storage import SECRET, Proxy


def save(folder: Path, iteration: int, size: int = 10_000) -> Path:
    path = checkpoint_path(folder, iteration)
    save_checkpoint(path, {"iter": iteration, "weights": torch.rand(size)})
    return path


@pytest.fixture
def uploader(url: str) -> Iterator[Uploader]:
    uploader = Uploader(url, keep=None)
    yield uploader
    uploader.close()


def names(events: list[UploadEvent]) -> list[tuple[str, int | None]]:
    return [(event.event, event.fields.get("iteration")) for event in events]


def test_what_is_flushed_is_there(uploader: Uploader, url: str, tmp_path: Path) -> None:
    uploader.submit(save(tmp_path, 2))
    assert names(uploader.flush(patience(30.0))) == [("uploaded", 2)]
    assert find_stored_iteration(url) == 2
    assert uploader.flush(patience(30.0)) == []


def test_a_slow_server_gets_the_first_and_the_newest(
    uploader: Uploader, url: str, network: Proxy, tmp_path: Path
) -> None:
    """While the first is on its way, five more are saved and older ones deleted; then 40 kB each go at 40 kB/s."""
    network.rate = 1_000.0
    uploader.submit(save(tmp_path, 2))
    wait_until(lambda: any("model_2-" in line for line in network.requests), "the first is on its way")
    for iteration in range(4, 14, 2):
        uploader.submit(save(tmp_path, iteration))
        checkpoint_path(tmp_path, iteration - 2).unlink()
    network.rate = 40_000.0
    assert names(uploader.flush(patience(60.0))) == [("uploaded", 2), ("uploaded", 12)]
    network.rate = None
    (tmp_path / "there").mkdir()
    path, lines = fetch_checkpoint(url, tmp_path / "there")
    assert path is not None
    assert (path.name, lines) == ("model_12.pt", [])
    assert load_checkpoint(path, "cpu")["iter"] == 12


def test_a_dead_server_is_told_once_and_tried_until_it_lives(
    uploader: Uploader, url: str, network: Proxy, tmp_path: Path
) -> None:
    network.up = False
    uploader.submit(save(tmp_path, 2))
    events: list[UploadEvent] = []
    wait_until(lambda: events.extend(uploader.poll_events()) or events, "an event")
    assert names(events) == [("upload_failed", 2)]
    assert "model_2.pt could not be uploaded" in (events[0].line or "")
    assert SECRET not in str(events)
    network.up = True
    assert names(uploader.flush(patience(60.0))) == [("uploaded", 2)]
    assert find_stored_iteration(url) == 2


def test_the_flush_ends_when_it_says(uploader: Uploader, url: str, network: Proxy, tmp_path: Path) -> None:
    network.stall_on = re.compile(b"model_2-")
    uploader.submit(save(tmp_path, 2))
    (event,) = uploader.flush(1.5)
    assert event.event == "upload_given_up"
    assert "not done within 1.5 s (--checkpoint-flush-s)" in (event.line or "")
    uploader.close()
    network.stall_on = None
    assert fetch_checkpoint(url, tmp_path) == (None, [])


def test_a_killed_upload_leaves_nothing_half_read(uploader: Uploader, url: str, network: Proxy, tmp_path: Path) -> None:
    """SIGKILL to the process that uploads 40 MB, in the midst of it; the next checkpoint gets a new process."""
    uploader.submit(save(tmp_path, 2))
    uploader.flush(patience(30.0))
    network.rate = 2e6
    uploader.submit(save(tmp_path, 4, size=10_000_000))
    wait_until(lambda: sum("partNumber" in line for line in network.requests) >= 2, "two parts are on their way")
    os.kill(uploader._process.pid, signal.SIGKILL)
    (event,) = uploader.flush(patience(30.0))
    assert "the upload process exited with status -9" in (event.line or "")
    network.rate = None
    (tmp_path / "there").mkdir()
    path, lines = fetch_checkpoint(url, tmp_path / "there")
    assert path is not None
    assert (path.name, lines) == ("model_2.pt", [])
    uploader.submit(tmp_path / "model_4.pt")
    assert names(uploader.flush(patience(30.0))) == [("uploaded", 4)]


HOLDER = """
import sys, time
from pathlib import Path
from mjtrain.runs.storage.uploader import Uploader

uploader = Uploader(sys.argv[1], keep=None)
uploader.submit(Path(sys.argv[2]))
print(uploader._process.pid, flush=True)
time.sleep(600)
"""


def test_it_dies_with_its_rank_and_shows_no_secret(url: str, network: Proxy, tmp_path: Path) -> None:
    network.stall_on = re.compile(b"model_2-")
    command = [sys.executable, "-c", HOLDER, url, str(save(tmp_path, 2))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as rank:
        assert rank.stdout is not None
        process = Path("/proc") / rank.stdout.readline().strip()
        assert network.stalled.wait(patience(60.0))
        assert SECRET.encode() not in (process / "cmdline").read_bytes()
        assert SECRET.encode() in (process / "environ").read_bytes()
        rank.kill()
    wait_until(lambda: not process.exists(), "the process that uploads has gone")


def record_best(run_dir: Path, iteration: int) -> BestCheckpoint:
    best = BestCheckpoint(metric="eval/return", value=float(iteration), iteration=iteration)
    write_best(run_dir, best)
    return best


def test_the_best_one_arrives_though_newer_ones_come_before_it(
    uploader: Uploader, url: str, network: Proxy, tmp_path: Path
) -> None:
    """It waits behind a slow upload, and two newer ones are saved meanwhile."""
    network.rate = 2_000.0
    uploader.submit(save(tmp_path, 2))
    wait_until(lambda: any("model_2-" in line for line in network.requests), "the first is on its way")
    path = save(tmp_path, 4)
    best = record_best(tmp_path, 4)
    uploader.submit(path, is_best=True)
    for iteration in (6, 8):
        uploader.submit(save(tmp_path, iteration))
    network.rate = None
    events = uploader.flush(patience(60.0))
    assert names(events) == [("uploaded", 2), ("uploaded", 8), ("uploaded", 4)]
    assert uploader.missing is None
    (tmp_path / "there").mkdir()
    newest, lines = fetch_checkpoint(url, tmp_path / "there")
    assert newest is not None
    assert (newest.name, lines) == ("model_8.pt", [])
    assert read_best(tmp_path / "there") == best


def test_the_best_one_survives_the_process_that_should_upload_it(
    uploader: Uploader, url: str, network: Proxy, tmp_path: Path
) -> None:
    network.stall_on = re.compile(b"model_2-")
    uploader.submit(save(tmp_path, 2), is_best=True)
    record_best(tmp_path, 2)
    assert network.stalled.wait(patience(30.0))
    os.kill(uploader._process.pid, signal.SIGKILL)
    uploader._process.wait()
    network.stall_on = None
    uploader.submit(save(tmp_path, 4))
    uploader.flush(patience(60.0))
    assert uploader.missing is None
    (tmp_path / "there").mkdir()
    fetch_checkpoint(url, tmp_path / "there")
    assert (read_best(tmp_path / "there") or pytest.fail("it is not there")).iteration == 2


def test_a_process_that_cannot_start_again_loses_a_checkpoint_and_not_the_training(
    uploader: Uploader, url: str, tmp_path: Path
) -> None:
    uploader._process.kill()
    uploader._process.wait()
    saved = save(tmp_path, 2)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        uploader.submit(saved)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [event.event for event in uploader.poll_events()] == ["upload_given_up"]
    assert "model_2.pt was not uploaded" in (uploader.missing or "")
    uploader.submit(save(tmp_path, 4))
    assert names(uploader.flush(patience(30.0))) == [("uploaded", 4)]


def test_best_json_never_names_what_is_not_stored(uploader: Uploader, url: str, tmp_path: Path) -> None:
    uploader.submit(save(tmp_path, 2), is_best=True)
    record_best(tmp_path, 2)
    uploader.flush(patience(30.0))
    save(tmp_path, 4)
    record_best(tmp_path, 4)  # the process that uploads does not know it yet
    uploader.submit(save(tmp_path, 6))
    uploader.flush(patience(30.0))
    content = Storage(url).read(BEST_FILE)
    assert content is not None
    assert parse_best(content[0]) == BestCheckpoint(metric="eval/return", value=2.0, iteration=2)
    uploader.submit_best(checkpoint_path(tmp_path, 4))
    assert names(uploader.flush(patience(30.0))) == [("uploaded", 4)]
    content = Storage(url).read(BEST_FILE)
    assert content is not None
    assert parse_best(content[0]) == BestCheckpoint(metric="eval/return", value=4.0, iteration=4)


def test_what_was_not_stored_is_known_until_a_newer_one_is(uploader: Uploader, network: Proxy, tmp_path: Path) -> None:
    network.up = False
    uploader.submit(save(tmp_path, 2))
    uploader.flush(0.2)
    assert "model_2.pt was not uploaded" in (uploader.missing or "")
    network.up = True
    uploader.submit(save(tmp_path, 4))
    uploader.flush(patience(60.0))
    assert uploader.missing is None


def test_metrics_go_along_without_a_line_that_is_being_written(uploader: Uploader, url: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"iteration": 1}\n{"iteration": 2}\n{"iterat')
    uploader.submit(save(tmp_path, 2))
    uploader.flush(patience(30.0))
    there = tmp_path / "there"
    there.mkdir()
    fetch_checkpoint(url, there)
    assert (there / "metrics.jsonl").read_bytes() == b'{"iteration": 1}\n{"iteration": 2}\n'


NOISE = """
import os, threading, time
os.write(1, b"hello from a library\\n[1]\\n{}\\n")
def chat():
    while True:
        time.sleep(0.01)
        os.write(1, b"noise without an end")
if "-m" in __import__("sys").orig_argv:
    threading.Thread(target=chat, daemon=True).start()
"""


def test_what_libraries_print_is_not_an_event(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "sitecustomize.py").write_text(NOISE.replace("time.sleep(0.01)", "time.sleep(3)"))
    monkeypatch.syspath_prepend(tmp_path / "lib")
    uploader = Uploader(url, keep=None)
    try:
        uploader.submit(save(tmp_path, 2))
        events = uploader.flush(patience(30.0))
        assert names(events) == [("uploaded", 2)]
    finally:
        uploader.close()


def test_two_new_runs_at_one_url_do_not_mix(any_url: str, tmp_path: Path) -> None:
    """Eight begin at the same moment; one gets it, and the others say whose it is."""
    barrier, won, lost = threading.Barrier(8), [], []

    def begin(name: str) -> None:
        storage = Storage(any_url)
        barrier.wait()
        try:
            take_url(storage, f"session {name}", name, is_new=True)
            won.append(name)
        except TakenError as error:
            lost.append(str(error))

    threads = [threading.Thread(target=begin, args=(f"run_{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    owner, _ = read_owner(Storage(any_url))
    assert owner is not None
    assert owner.run in won
    assert len(won) + len(lost) == 8
    assert all("began there at the same time" in line for line in lost)
    for name in won:  # whoever read the record of an earlier one took its place, and that one is kept out from then on
        if name != owner.run:
            with pytest.raises(TakenError, match=rf"run {owner.run} on host .* has stored there since"):
                check_owner(Storage(any_url), f"session {name}", name)
    check_owner(Storage(any_url), owner.session, owner.run)


def test_a_run_whose_url_was_taken_stores_nothing_there(url: str, tmp_path: Path) -> None:
    """As one whose host slept while it was resumed elsewhere."""
    uploader = Uploader(url, None, "first", is_new=True)
    try:
        uploader.submit(save(tmp_path, 2))
        assert names(uploader.flush(patience(30.0))) == [("uploaded", 2)]
        take_url(Storage(url), "second", "the same elsewhere", is_new=False)
        uploader.submit(save(tmp_path, 4))
        (event,) = uploader.flush(patience(30.0))
        assert event.event == "upload_given_up"
        words = "model_4.pt was not uploaded to .*: run the same elsewhere on host .* has stored there since"
        assert re.search(words, uploader.missing or "")
        assert find_stored_iteration(url) == 2
    finally:
        uploader.close()
    with pytest.raises(TakenError, match="has stored checkpoints there"):
        take_url(Storage(url), "third", "a new run", is_new=True)


@pytest.mark.parametrize("name", ["PermissionDeniedError", "UnauthenticatedError"])
def test_what_does_not_mend_itself_is_told_apart(tmp_path: Path, name: str) -> None:
    from obstore import exceptions

    storage = Storage(f"file://{tmp_path}")

    def fail(error: Exception) -> None:
        raise error

    with pytest.raises(StorageRefusedError):
        storage._attempt(lambda: fail(getattr(exceptions, name)("no")))
    with pytest.raises(StorageError) as caught:
        storage._attempt(lambda: fail(exceptions.GenericError("error sending request")))
    assert not isinstance(caught.value, StorageRefusedError)
