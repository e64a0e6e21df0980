"""Runs are found by the task that they recorded, wherever they are, and listed with how they ended."""

import json
import os
import pty
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mjtrain.api import make_train_config
from mjtrain.cli.runs import main as list_command
from mjtrain.config import TaskConfig, TrainConfig, to_plain
from mjtrain.runs import history
from mjtrain.runs.checkpoint import save_checkpoint
from mjtrain.runs.claim import claim_run_dir
from mjtrain.runs.history import (
    RunSearch,
    find_newest_run,
    find_run_to_resume,
    find_runs,
    list_runs,
    open_run,
    read_task,
    summarise_run,
)
from mjtrain.runs.run_dir import experiment_dir, name_run_dir, save_params
from mjtrain.runs.teacher import _find_finished_run
from mjtrain.runs.trained_run import find_trained_run
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.event_log import write_event
from mjtrain.tools.plotting import find_runs as find_runs_to_plot

TASK = """
from dataclasses import replace
from mjtrain.env.catalog import load_task

def make_task():
    return load_task("Cartpole-Balance")
"""


def make_run(run_dir: Path, task: str | None, *, checkpoint: bool = True, **record: Any) -> Path:
    run_dir.mkdir(parents=True)
    if task is not None:
        run = {"max_iterations": 4, "run_name": "", **record.pop("run", {})}
        save_params(run_dir, launch={"task": task, **record, "run": run})
    if checkpoint:
        save_checkpoint(run_dir / "model_1.pt", {"format": 1, "weight": torch.zeros(1)})
    (run_dir / "metrics.jsonl").write_text('{"iteration": 1}\n')
    return run_dir


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "hopper.py"
    path.write_text(TASK)
    return path


def resuming(task: str, log_root: Path, *, experiment: str = "", **options: Any) -> TrainConfig:
    config = make_train_config(task, log_root=str(log_root), **{"resume": True, **options})
    return replace(config, agent=replace(config.agent, experiment_name=experiment))


def test_a_narrow_terminal_shows_how_runs_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = make_run(tmp_path / "cartpole_balance" / "2026-01-01_00-00-00", "Cartpole-Balance")
    write_event(run_dir, "end", how="failed", cause="the gripper is stuck " * 9)
    read, write = pty.openpty()
    monkeypatch.setenv("COLUMNS", "40")
    with open(write, "w") as terminal, monkeypatch.context() as patch:  # noqa: PTH123
        patch.setattr(sys, "stdout", terminal)
        list_command(["--log-root", str(tmp_path)])
    head, line = os.read(read, 1 << 16).decode().splitlines()
    os.close(read)
    assert head.endswith("  state")
    assert "  failed: the gripper " in line
    assert len(line) <= len(head) + 20


def test_two_files_with_the_same_factory_do_not_share_runs(file: Path, tmp_path: Path) -> None:
    other = file.with_name("ant.py")
    other.write_text(TASK)
    logs = tmp_path / "logs"
    assert experiment_dir(resuming(str(file), logs)) == logs / "hopper_make_task"
    hopper = make_run(logs / "hopper_make_task" / "2026-01-01_00-00-00", "hopper.py:make_task", task_file=str(file))
    make_run(logs / "ant_make_task" / "2026-01-02_00-00-00", "ant.py:make_task", task_file=str(other))
    assert find_run_to_resume(resuming(str(file), logs))[0] == hopper
    assert list(find_runs(RunSearch.for_task(f"{file}:make_task", logs))) == [hopper]
    assert find_runs_to_plot([str(file)], str(logs)) == [hopper]
    assert [run.run_dir for run in list_runs(logs, f"{file}:make_task")] == [hopper]


def test_a_file_of_the_same_name_elsewhere_is_another_task_while_both_are_there(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "hopper.py"
    other.parent.mkdir()
    other.write_text(f"{TASK}# another one")
    logs = tmp_path / "logs"
    run_dir = make_run(logs / "hopper_make_task" / "2026-01-01_00-00-00", "hopper.py:make_task", task_file=str(file))
    with pytest.raises(
        RequestError, match=r"no run of .*elsewhere/hopper.py:make_task below .* has a valid checkpoint"
    ):
        find_run_to_resume(resuming(str(other), logs))
    file.unlink()
    assert find_run_to_resume(resuming(str(other), logs))[0] == run_dir


def test_runs_of_earlier_versions_are_found(file: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    old = make_run(logs / "make_task" / "2026-01-01_00-00-00", f"{file}:make_task")
    make_run(logs / "make_task" / "2026-01-02_00-00-00", f"{tmp_path / 'ant.py'}:make_task")
    assert find_run_to_resume(resuming(str(file), logs))[0] == old


def test_runs_in_a_folder_of_any_name_are_found_newest_first(tmp_path: Path) -> None:
    old = make_run(tmp_path / "cartpole_balance" / "2026-01-01_00-00-00", "Cartpole-Balance")
    new = make_run(tmp_path / "mine" / "2026-01-02_00-00-00_x", "Cartpole-Balance")
    make_run(tmp_path / "cartpole_balance" / "2026-01-04_00-00-00", "Cartpole-Swingup")
    unnamed = make_run(tmp_path / "mine" / "zebra", "Cartpole-Balance")
    assert list(find_runs(RunSearch.for_task("Cartpole-Balance", tmp_path))) == [new, old, unnamed]
    assert find_run_to_resume(resuming("Cartpole-Balance", tmp_path))[0] == new
    assert find_run_to_resume(resuming("Cartpole-Balance", tmp_path, experiment="cartpole_balance"))[0] == old
    with pytest.raises(RequestError, match=r"no run of Cartpole-Balance below .*/empty has a valid checkpoint"):
        find_run_to_resume(resuming("Cartpole-Balance", tmp_path, experiment="empty"))
    assert find_run_to_resume(resuming("Cartpole-Balance", tmp_path, resume=new.name))[0] == new


def test_passed_over_runs_are_those_of_the_task(tmp_path: Path) -> None:
    found = make_run(tmp_path / "cartpole_balance" / "2026-01-01_00-00-00", "Cartpole-Balance")
    make_run(tmp_path / "other" / "2026-01-05_00-00-00", "Cartpole-Swingup", checkpoint=False)
    make_run(tmp_path / "other" / "2026-01-04_00-00-00", None, checkpoint=False)
    make_run(tmp_path / "mine" / "2026-01-03_00-00-00", "Cartpole-Balance", checkpoint=False)
    make_run(tmp_path / "cartpole_balance" / "2026-01-02_00-00-00", None, checkpoint=False)
    run_dir, _, lines = find_newest_run("--resume", RunSearch.for_task("Cartpole-Balance", tmp_path))
    assert run_dir == found
    assert [line.partition(":")[0] for line in lines] == [
        f"passed over {tmp_path}/mine/2026-01-03_00-00-00",
        f"passed over {tmp_path}/cartpole_balance/2026-01-02_00-00-00",
    ]


def test_a_run_that_may_not_be_searched_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # another user may not come here from the root
    run_dir = make_run(Path("cartpole_balance/2026-01-02_00-00-00"), "Cartpole-Balance")
    user, other = os.geteuid(), 65534 if os.geteuid() == 0 else os.geteuid()  # root may search every folder
    os.chown(run_dir, other, -1)
    run_dir.chmod(0)
    try:
        os.seteuid(other)
        with pytest.raises(RequestError, match=r"^--resume .*: may not be searched; change its permissions$"):
            open_run("--resume", str(run_dir), RunSearch.for_task("Cartpole-Balance", Path()))
    finally:
        os.seteuid(user)


def test_only_runs_down_to_the_one_that_is_found_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for day in range(1, 29):
        make_run(tmp_path / "a" / f"2026-01-{day:02}_00-00-00", "Cartpole-Balance", checkpoint=day == 27)
    opened = []

    def counted(run_dir: Path) -> str | None:
        opened.append(run_dir)
        return read_task(run_dir)

    monkeypatch.setattr(history, "read_task", counted)
    find_newest_run("--resume", RunSearch.for_task("Cartpole-Balance", tmp_path))
    assert [run_dir.name[:10] for run_dir in opened] == ["2026-01-28", "2026-01-27"]


def test_only_the_head_of_a_record_is_read(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "a" / "b", "hopper.py:make_task", task_file="/gone/hopper.py")
    with (run_dir / "params" / "launch.yaml").open("a") as file:
        file.write("plan: {this is not valid YAML\n")
    assert read_task(run_dir) == "/gone/hopper.py:make_task"
    later = tmp_path / "a" / "c"
    later.mkdir()
    save_params(later, launch={"run": {"num_envs": 2}, "task": "Arm-Reach"})
    assert read_task(later) == "Arm-Reach"


def test_auto_resumes_what_the_same_command_started_in_its_own_folders(file: Path, tmp_path: Path) -> None:
    from mjtrain.runs.resume import find_or_make_run

    logs = tmp_path / "logs"
    make_run(logs / "mine" / "2026-01-03_00-00-00", f"{file}:make_task", run={"run_name": "n"})
    own = make_run(logs / "hopper_make_task" / "2026-01-01_00-00-00", f"{file}:make_task", run={"run_name": "n"})
    ant = f"{file.parent}/ant.py:make_task"
    make_run(logs / "hopper_make_task" / "2026-01-02_00-00-00", ant, run={"run_name": "n"})
    assert find_or_make_run(resuming(str(file), logs, resume="auto", run_name="n")).run_dir == own


def test_auto_finds_a_run_that_was_resumed_by_hand(tmp_path: Path) -> None:
    from mjtrain.runs.resume import find_kept_flags, find_local_run, find_resumed_here

    url, folder = "file:///stored", tmp_path / "cartpole_balance"
    flags = {"checkpoint_url": url, "run_name": "slurm-7"}
    run_dir = make_run(folder / "2026-01-01_00-00-00_slurm-7", "Cartpole-Balance", run=flags)
    config = resuming("Cartpole-Balance", tmp_path, resume=str(run_dir))
    found, run = find_local_run(config), to_plain(config.run)
    assert (run["checkpoint_url"], run["run_name"]) == (None, "")  # nothing is uploaded
    for _ in range(2):
        kept = find_kept_flags(found, run)
        save_params(run_dir, launch={"task": "Cartpole-Balance", "run": run, **kept})
    assert find_resumed_here(resuming("Cartpole-Balance", tmp_path, **{"resume": "auto", **flags})) == run_dir
    assert find_resumed_here(resuming("Cartpole-Balance", tmp_path, resume="auto")) is None
    for now in ({"checkpoint_url": "file:///elsewhere"}, {"run_name": "by-hand"}):
        by_hand = {**run, **now}
        save_params(run_dir, launch={"task": "Cartpole-Balance", "run": by_hand, **find_kept_flags(found, by_hand)})
        for command in (flags, now):
            assert find_resumed_here(resuming("Cartpole-Balance", tmp_path, **{"resume": "auto", **command})) == run_dir
    assert find_kept_flags(found, {**run, **flags}) == {}
    assert find_kept_flags(replace(found, resume=url), run) == {}  # a copy in a new directory


def test_a_task_may_name_its_folder(tmp_path: Path) -> None:
    from mjtrain.env.catalog import load_task

    task = load_task("Cartpole-Balance")

    def folder(task: TaskConfig) -> Path:
        return experiment_dir(make_train_config(task, log_root=str(tmp_path)))

    assert folder(replace(task, name="pole")) == tmp_path / "pole"
    assert folder(task) == tmp_path / "custom"
    for name in ("", "a/b", ".."):
        with pytest.raises(RequestError, match=r"TaskConfig.name '.*': must be a file name"):
            folder(replace(task, name=name))
    with pytest.raises(RequestError, match=r"--agent.experiment-name a/b: must be a file name"):
        experiment_dir(resuming("Cartpole-Balance", tmp_path, experiment="a/b"))
    with pytest.raises(RequestError, match=r"--log-root .*: .* is not UTF-8, and MuJoCo opens no file there"):
        experiment_dir(make_train_config(task, log_root=os.fsdecode(b"b\xff")))
    with pytest.raises(RequestError, match=r"--run-name .*: is not UTF-8, and MuJoCo opens no file of that name"):
        name_run_dir(make_train_config(task, log_root=str(tmp_path), run_name=os.fsdecode(b"b\xff")))


def test_a_run_directory_takes_the_place_of_a_task(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "a" / "2026-01-01_00-00-00", "Cartpole-Balance")
    with pytest.raises(RequestError, match=r"env\.yaml: cannot be read"):
        find_trained_run(str(run_dir))
    with pytest.raises(RequestError, match="is a run already"):
        find_trained_run(str(run_dir), run="x")


HERE = socket.gethostname()


def record_run(
    log_root: Path,
    lines: list[Any],
    *,
    name: str = "2026-01-02_03-04-05",
    task: str = "Cartpole-Balance",
    checkpoints: tuple[int, ...] = (),
    host: str | None = HERE,
    run: dict[str, Any] | None = None,
) -> Path:
    run_dir = log_root / task.lower().replace("-", "_") / name
    make_run(run_dir, task, checkpoint=False, run=run or {}, **({"host": host} if host else {}))
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
    run = summarise_run(record_run(tmp_path, lines, checkpoints=checkpoints, host=host))
    assert (run.state, run.detail) == (state, detail)
    assert run.num_checkpoints == len(checkpoints)
    assert run.last_checkpoint == max(checkpoints, default=None)
    assert run.started == "2026-01-02T03:04:05"
    assert run.max_iterations == 4


@pytest.mark.parametrize(
    ("env_steps", "state"), [(32_000, "killed"), (40_000, "done"), (None, "killed"), ("40000", "killed")]
)
def test_a_run_that_was_asked_for_env_steps_is_done_with_them(env_steps: Any, state: str, tmp_path: Path) -> None:
    """However many iterations its last start would have taken for all of them, with more ranks than before."""
    last = {"iteration": 160, "mean_reward": 1.0, "env_steps_total": env_steps}
    run = {"max_iterations": 100, "total_env_steps": 40_000}
    run_dir = record_run(tmp_path, [last], checkpoints=(160,), run=run)
    save_params(run_dir, learner={"name": "rsl_rl", "settings": {}})
    save_checkpoint(run_dir / "model_160.pt", {"format": 1, "weight": torch.zeros(1)})
    assert summarise_run(run_dir).state == state
    found = _find_finished_run("Cartpole-Balance", str(tmp_path))
    assert found == (run_dir if state == "done" else None)


def test_an_older_run_failed_with_the_cause_in_its_crash_file_unless_it_continued(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path, rows(2), host=None)
    crash = run_dir / "crash" / "rank_1.txt"
    crash.parent.mkdir()
    crash.write_text("2026-01-01\n-----\nFAILED: rank 1 on host a in phase update: ValueError: no\n")
    assert summarise_run(run_dir).detail == "rank 1 on host a in phase update: ValueError: no"
    assert summarise_run(run_dir).state == "failed"
    before = time.time() - 60
    os.utime(crash, (before, before))
    assert summarise_run(run_dir).state == "unknown"


def test_a_run_in_progress_is_seen_and_not_disturbed(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path, [*rows(2), STOPPED])
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
    old = record_run(tmp_path, rows(3), name="2025-01-01_00-00-00")
    new = record_run(tmp_path, rows(1), name="2026-01-01_00-00-00_mine")
    dog = record_run(tmp_path, [], name="2025-06-01_00-00-00", task="Quadruped-Velocity-Flat")
    assert [run.run_dir for run in list_runs(tmp_path)] == [new, dog, old]
    found = list_runs(tmp_path, "cartpole-balance")
    assert [(run.run_dir, run.iterations, run.reward) for run in found] == [(new, 1, None), (old, 3, 1.5)]
    assert list_runs(tmp_path, "Arm-Reach") == []


def test_a_run_whose_metrics_cannot_be_opened_is_not_one_without_iterations(tmp_path: Path) -> None:
    run_dir = record_run(tmp_path, rows(3), checkpoints=(2,))
    (run_dir / "metrics.jsonl").rename(run_dir / "kept.jsonl")
    assert [run.state for run in list_runs(tmp_path)] == ["killed"]
    (run_dir / "metrics.jsonl").mkdir()
    (found,) = list_runs(tmp_path)
    assert found.state == "unreadable"
    assert found.detail == f"OSError: [Errno 22] not a regular file: '{run_dir}/metrics.jsonl'"


def test_starts_are_listed_in_one_time_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is named by the clock of its host; one a second after its name has the time of the name."""
    monkeypatch.setenv("TZ", "UTC-9")  # in Japan
    time.tzset()
    try:
        make_run(tmp_path / "a" / "2026-12-01_02-59-16", "a", started="2026-12-01T02:59:16.512+14:00")
        make_run(tmp_path / "a" / "2026-11-30_22-00-00", "a", started="2026-11-30T22:00:01.400+09:00")
        make_run(tmp_path / "a" / "2026-11-30_01-59-49", "a", started="2026-11-30T01:59:49.512-11:00")
        make_run(tmp_path / "a" / "2026-11-29_00-00-00", "a", started="9999-12-31T23:59:59-11:00")
        starts = [run.started for run in list_runs(tmp_path)]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert starts.pop() == "2026-11-29T00:00:00"  # its record is in the year 10000 here
    assert starts == ["2026-11-30T22:00:00", "2026-11-30T21:59:49", "2026-11-30T21:59:16"]


def test_long_metrics_are_read_from_their_end(tmp_path: Path) -> None:
    filler = [{"iteration": at, "mean_reward": 1.0, "text": "x" * 1000} for at in range(1, 500)]
    assert summarise_run(record_run(tmp_path, [*filler, STOPPED])).iterations == 499
    only_events = [*rows(3), *[{"event": "upload", "text": "x" * 1000}] * 400]
    assert summarise_run(record_run(tmp_path / "other", only_events)).iterations == 3
