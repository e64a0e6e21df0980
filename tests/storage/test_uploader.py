"""Uploads beside a training: never in its way, never for ever, and nothing is lost where the network is bad."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mjtrain.runs.checkpoint import checkpoint_path, load_checkpoint, save_checkpoint
from mjtrain.runs.storage import Uploader, UploadEvent, fetch_checkpoint, find_stored_iteration
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
from mjtrain.runs.storage import Uploader

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
