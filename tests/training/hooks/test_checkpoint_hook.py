"""Checkpoints of a run whose directory goes away while it trains."""

import subprocess
import sys
from pathlib import Path

from support.commands import run

TASK = """
from dataclasses import replace
from pathlib import Path
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

def make(func):
    task = load_task("Cartpole-Balance")
    agent = replace(task.agent, save_interval=1)
    env = replace(task.env, rewards={"one": RewardTerm(func=func, weight=1.0)})
    return replace(task, num_envs=4, max_iterations=6, agent=agent, env=env)

def make_deleting():
    return make(deleting)

def make_unmounting():
    return make(unmounting)
"""


def train(folder: Path, factory: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.py").write_text(TASK)
    command = [
        str(Path(sys.executable).parent / "train"),
        f"mine.py:{factory}",
        "--gpu-ids",
        "None",
        "--num-threads",
        "1",
    ]
    return run(command, cwd=folder, environ={"CUDA_VISIBLE_DEVICES": ""})


def test_a_deleted_run_directory_is_said_once_and_ends_with_status_1(tmp_path: Path) -> None:
    done = train(tmp_path, "make_deleting")
    assert done.returncode == 1
    (warning,) = [line for line in done.stdout.splitlines() if "warning" in line]
    assert (
        "is missing (deleted or renamed); training continues, but nothing is saved unless the directory comes back"
        in warning
    )
    assert "iteration 6/6" in done.stdout
    assert "is missing (deleted or renamed); iteration 6 is not saved" in done.stderr


def test_a_run_directory_that_comes_back_is_used_again(tmp_path: Path) -> None:
    done = train(tmp_path, "make_unmounting")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is missing (deleted or renamed)") == 1
    (run_dir,) = tmp_path.glob("logs/*/*")
    assert sorted(path.name for path in run_dir.glob("*.pt")) == ["model_1.pt", "model_5.pt", "model_6.pt"]
    assert (run_dir / "metrics.jsonl").read_text().count('"iteration"') == 6
