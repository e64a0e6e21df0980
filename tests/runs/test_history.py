"""How runs ended, as they recorded it, and derived for runs that recorded nothing."""

import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mjtrain.runs.claim import claim_run_dir
from mjtrain.runs.history import list_runs, summarise_run
from mjtrain.runs.run_dir import save_params
from mjtrain.runtime.errors import RequestError

HERE = socket.gethostname()


def make_run(
    log_root: Path,
    lines: list[Any],
    *,
    name: str = "2026-01-02_03-04-05",
    task: str = "Cartpole-Balance",
    checkpoints: tuple[int, ...] = (),
    host: str | None = HERE,
) -> Path:
    run_dir = log_root / task.lower().replace("-", "_") / name
    run_dir.mkdir(parents=True)
    save_params(run_dir, launch={"task": task, "run": {"max_iterations": 4}, **({"host": host} if host else {})})
    for iteration in checkpoints:
        (run_dir / f"model_{iteration}.pt").write_bytes(b"")
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (run_dir / "metrics.jsonl").write_text(text)
    return run_dir


def rows(count: int) -> list[Any]:
    return [{"iteration": at, "mean_reward": None if at == 1 else at / 2} for at in range(1, count + 1)]


STOPPED = {"event": "end", "how": "stopped", "signal": "SIGTERM"}
FAILED = {"event": "end", "how": "failed", "cause": "ValueError: no"}
RESTART = {"event": "restart", "iteration": 0}


@pytest.mark.parametrize(
    ("lines", "checkpoints", "host", "state", "detail"),
    [
        ([*rows(4), {"event": "end", "how": "done"}], (2, 4), HERE, "done", ""),
        ([*rows(2), STOPPED], (2,), HERE, "stopped", "SIGTERM"),
        ([*rows(2), FAILED], (), HERE, "failed", "ValueError: no"),
        ([*rows(2), FAILED, '{"iterat'], (), HERE, "failed", "ValueError: no"),
        ([*rows(2), FAILED, *rows(3)], (), HERE, "killed", ""),
        ([*rows(2), FAILED, RESTART], (), HERE, "killed", ""),
        (rows(2), (), HERE, "killed", ""),
        (rows(2), (), "elsewhere", "unknown", "started on elsewhere"),
        (rows(2), (), None, "unknown", ""),
        (rows(4), (4,), None, "done", ""),
        ([], (), None, "unknown", ""),
    ],
)
def test_how_runs_ended(
    lines: list[Any], checkpoints: tuple[int, ...], host: str | None, state: str, detail: str, tmp_path: Path
) -> None:
    run = summarise_run(make_run(tmp_path, lines, checkpoints=checkpoints, host=host))
    assert (run.state, run.detail) == (state, detail)
    assert run.num_checkpoints == len(checkpoints)
    assert run.last_checkpoint == max(checkpoints, default=None)
    assert run.started == "2026-01-02T03:04:05"
    assert run.max_iterations == 4


def test_an_older_run_failed_with_the_cause_in_its_crash_file_unless_it_continued(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, rows(2), host=None)
    crash = run_dir / "crash" / "rank_1.txt"
    crash.parent.mkdir()
    crash.write_text("2026-01-01\n-----\nFAILED: rank 1 on host a in phase update: ValueError: no\n")
    assert summarise_run(run_dir).detail == "rank 1 on host a in phase update: ValueError: no"
    assert summarise_run(run_dir).state == "failed"
    before = time.time() - 60
    os.utime(crash, (before, before))
    assert summarise_run(run_dir).state == "unknown"


def test_a_run_in_progress_is_seen_and_not_disturbed(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, [*rows(2), STOPPED])
    with claim_run_dir(run_dir):
        assert summarise_run(run_dir).state == "running"
        with pytest.raises(RequestError, match="another process"), claim_run_dir(run_dir):
            pass
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            assert summarise_run(run_dir)

    watchers = [threading.Thread(target=look) for _ in range(2)]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in range(20):
            with claim_run_dir(run_dir):
                time.sleep(0.002)
    finally:
        over.set()
        for watcher in watchers:
            watcher.join()
    assert summarise_run(run_dir).state == "stopped"


def test_runs_are_listed_newest_first_and_by_task(tmp_path: Path) -> None:
    old = make_run(tmp_path, rows(3), name="2025-01-01_00-00-00")
    new = make_run(tmp_path, rows(1), name="2026-01-01_00-00-00_mine")
    dog = make_run(tmp_path, [], name="2025-06-01_00-00-00", task="Quadruped-Velocity-Flat")
    assert [run.run_dir for run in list_runs(tmp_path)] == [new, dog, old]
    found = list_runs(tmp_path, "cartpole-balance")
    assert [(run.run_dir, run.iterations, run.reward) for run in found] == [(new, 1, None), (old, 3, 1.5)]
    assert list_runs(tmp_path, "Arm-Reach") == []


def test_long_metrics_are_read_from_their_end(tmp_path: Path) -> None:
    filler = [{"iteration": at, "mean_reward": 1.0, "text": "x" * 1000} for at in range(1, 500)]
    assert summarise_run(make_run(tmp_path, [*filler, STOPPED])).iterations == 499
    only_events = [*rows(3), *[{"event": "upload", "text": "x" * 1000}] * 400]
    assert summarise_run(make_run(tmp_path / "other", only_events)).iterations == 3
