"""Checkpoints of a run whose directory goes away while it trains."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import run
from support.frozen import dead_file_system

TASK = """
from dataclasses import replace
from pathlib import Path
import ctypes
import os
import shutil
import torch
from mjtrain import RewardTerm
from mjtrain.env.catalog import load_task

STEPS = 0

def run_dir():
    return next(Path("logs").glob("*/*"))

def deleting(env):
    global STEPS
    STEPS += env.num_envs > 2  # not in the dry step, before there is a directory
    if STEPS == 30:  # in the second iteration
        shutil.rmtree(run_dir())
    return torch.ones(env.num_envs)

def unmounting(env):
    global STEPS
    STEPS += env.num_envs > 2
    if STEPS == 30:
        run_dir().rename("elsewhere")
    elif STEPS == 110:  # in the fifth
        Path("elsewhere").rename(run_dir_name)
    elif STEPS == 1:
        globals()["run_dir_name"] = run_dir()
    return torch.ones(env.num_envs)

def dying(env):
    global STEPS
    STEPS += env.num_envs > 2
    if STEPS == 30:  # as `dead_file_system` of tests/support
        server = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
        assert ctypes.CDLL(None).mount(b"dead", bytes(run_dir()), b"fuse", 0, options) == 0
        os.close(server)
    return torch.ones(env.num_envs)

def blocking(env):
    global STEPS
    STEPS += env.num_envs > 2
    if STEPS == 1:
        (run_dir() / "nan").touch()  # where the folder of broken worlds would be
    return torch.ones(env.num_envs)

def losing(env):
    global STEPS
    STEPS += env.num_envs > 2
    if STEPS == 30:
        Path("loaded.pt").unlink(missing_ok=True)
    return torch.ones(env.num_envs)

def make(func):
    task = load_task("Cartpole-Balance")
    agent = replace(task.agent, save_interval=1)
    env = replace(task.env, rewards={"one": RewardTerm(func=func, weight=1.0)})
    return replace(task, num_envs=4, max_iterations=6, agent=agent, env=env)

def make_deleting():
    return make(deleting)

def make_dying():
    return make(dying)

def make_unmounting():
    return make(unmounting)

def make_blocking():
    return make(blocking)

def make_losing():
    return make(losing)
"""


def train(folder: Path, factory: str, *flags: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(TASK)
    command = [
        str(Path(sys.executable).parent / "train"),
        f"mine.py:{factory}",
        "--gpu-ids",
        "None",
        "--num-threads",
        "1",
        *flags,
    ]
    return run(command, cwd=folder, environ={"CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.parametrize(
    ("factory", "problem"),
    [
        ("make_deleting", "is missing (deleted or renamed)"),
        ("make_dying", "cannot be reached (Transport endpoint is not connected)"),
    ],
)
def test_a_run_directory_that_is_gone_is_said_once_and_ends_with_status_1(
    factory: str, problem: str, tmp_path: Path
) -> None:
    if factory == "make_dying":
        with dead_file_system(tmp_path):
            pass  # it is possible here
    try:
        done = train(tmp_path, factory)
    finally:
        for place in tmp_path.glob("logs/*/*") if factory == "make_dying" else ():
            subprocess.run(["umount", place], check=True)
    assert done.returncode == 1
    (warning,) = [line for line in done.stdout.splitlines() if "warning" in line]
    assert f"{problem}; training continues, but nothing is saved unless the directory comes back" in warning
    assert "iteration 6/6" in done.stdout
    assert f"{problem}; iteration 6 is not saved" in done.stderr


def test_a_run_directory_that_comes_back_is_used_again(tmp_path: Path) -> None:
    done = train(tmp_path, "make_unmounting")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is missing (deleted or renamed)") == 1
    (run_dir,) = tmp_path.glob("logs/*/*")
    assert sorted(path.name for path in run_dir.glob("*.pt")) == ["model_1.pt", "model_5.pt", "model_6.pt"]
    assert (run_dir / "metrics.jsonl").read_text().count('"iteration"') == 6


def test_broken_worlds_that_cannot_be_written_are_said(tmp_path: Path) -> None:
    fault = "kind=nan,phase=rollout,iteration=2"
    done = train(tmp_path, "make_blocking", "--inject-fault", fault, "--env.nan-guard.max-fraction", "1")
    assert done.returncode == 0, done.stderr
    (warning,) = [line for line in done.stdout.splitlines() if "broke" in line]
    assert "their last seconds could not be written to" in warning
    assert warning.endswith("/nan (File exists)")


def test_a_best_one_that_was_not_saved_is_not_the_best(tmp_path: Path) -> None:
    fault = "kind=disk-full,phase=save,iteration=1"
    done = train(tmp_path, "make_losing", "--inject-fault", fault, "--best-metric=-iteration")
    assert done.returncode == 0, done.stderr
    (run_dir,) = tmp_path.glob("logs/*/*")
    assert sorted(path.name for path in run_dir.glob("*.pt")) == [f"model_{number}.pt" for number in range(2, 7)]
    assert json.loads((run_dir / "best.json").read_text())["iteration"] == 2


def test_a_restart_needs_what_was_loaded_only_without_an_own_checkpoint(tmp_path: Path) -> None:
    assert train(tmp_path, "make_losing", "--max-iterations", "1").returncode == 0
    (tmp_path / "loaded.pt").write_bytes(next(tmp_path.glob("logs/*/*/model_1.pt")).read_bytes())
    flags = ["--load", "loaded.pt", "--max-restarts", "1", "--log-root", "again"]
    done = train(tmp_path, "make_losing", *flags, "--inject-fault", "kind=raise,phase=rollout,iteration=4")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "loaded.pt").exists()
    assert "from iteration 3" in done.stderr
