"""The commands as processes, as a user runs them."""

import dataclasses
import json
import random
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import mjtrain
from mjtrain.cli.train import main
from mjtrain.config import LaunchConfig, RunConfig
from mjtrain.runtime.worker import Stream, derive_seed
from mjtrain.training.reporting.console import STEADY_ITERATIONS
from support import commands
from support.jobs import Job


def run(*command: str, cwd: Path, exec_it: bool = False, **environ: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "mjtrain"] if command[0] == "mjtrain" else [str(commands.BIN / command[0])]
    environ = {"CUDA_VISIBLE_DEVICES": ""} | environ
    return commands.run([*program, *command[1:]], cwd=cwd, environ=environ, exec_it=exec_it)


def only_run_below(folder: Path) -> Path:
    (run_dir,) = folder.glob("logs/*/*")
    return run_dir


def read_metrics(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines() if '"event"' not in line]


def test_list_tasks(tmp_path: Path) -> None:
    done = run("list-tasks", cwd=tmp_path)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "Arm-Lift-Cube",
        "Arm-Lift-Cube-Vision",
        "Arm-Reach",
        "Arm-Reach-Vision",
        "Cartpole-Balance",
        "Cartpole-Balance-Vision",
        "Cartpole-Swingup",
        "Go2-Velocity-Flat",
        "Hand-Reorient-Cube",
        "Hand-Reorient-Cube-Vision",
        "Humanoid-Track",
        "Humanoid-Velocity-Flat",
        "Humanoid-Velocity-Rough",
        "Quadruped-Track",
        "Quadruped-Velocity-Flat",
        "Quadruped-Velocity-Rough",
    ]
    line = next(line for line in done.stdout.splitlines() if line.startswith("Cartpole-Balance "))
    assert line.endswith("Balance a pole by pushing the cart under it; about half a minute on two CPU cores")
    tasks = {task["name"]: task for task in json.loads(run("list-tasks", "--json", cwd=tmp_path).stdout)}
    task = tasks["Cartpole-Balance"]
    assert task["factory"] == "mjtrain_tasks.cartpole_balance:make_task"
    assert task["distribution"].startswith("mjtrain-tasks ")
    assert run("list-tasks", "--jsn", cwd=tmp_path).stderr == "list-tasks: unknown flag --jsn; did you mean --json?\n"


def test_help_says_each_default_once_and_fits_the_terminal(tmp_path: Path) -> None:
    for columns in (60, 80, 130):
        text = run("train", "--help", cwd=tmp_path, COLUMNS=str(columns)).stdout
        words = " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())
        assert "not for GPUs. Default: 1. --num-threads" in words
        assert "Seed of the run; every rank uses seed + rank. (default: 0)" in words
        assert "(default: )" not in words
        for sentence in re.findall(r"Default: [^()]*\(default: [^)]*\)", words):
            assert "--" in sentence, sentence  # of two flags
        assert max(map(len, text.splitlines())) <= columns


def test_help_is_short_and_help_all_has_the_rest(tmp_path: Path) -> None:
    general, short, everything = (
        run("train", *arguments, cwd=tmp_path).stdout
        for arguments in (["--help"], ["Cartpole-Balance", "--help"], ["Cartpole-Balance", "--help-all"])
    )
    for text in (general, short, everything):
        assert "--gpu-ids" in text
        assert "--torchrunx-log-dir" in text
    assert len(short.splitlines()) <= 150
    fields = [*dataclasses.fields(LaunchConfig), *dataclasses.fields(RunConfig)]
    rare = {f"--{field.name.replace('_', '-')} " for field in fields if field.metadata.get("rare")}
    assert len(rare) > 10
    assert not [flag for flag in rare if flag in short]
    assert [flag for flag in rare if flag in everything] == list(rare)
    assert "--help-all" in short
    assert "--env.rewards.upright.weight" not in short
    for flag in (
        "--env.rewards.upright.weight",
        "--env.events.start-pole.params.position",
        "--agent.num-steps-per-env",
        "--agent.save-interval",
        "--agent.actor.hidden-dims",
    ):
        assert flag in everything


def test_dry_run_prints_the_plan_and_starts_nothing(tmp_path: Path) -> None:
    done = run("train", "Cartpole-Balance", "--dry-run", "--gpu-ids", "None", "--num-workers", "2", cwd=tmp_path)
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert [rank["seed"] for rank in answer["plan"]["ranks"]] == [0, 1]
    assert answer["config"]["env"]["rewards"]["upright"]["weight"] == 1.0
    log_dir = answer["plan"]["log_dir"]
    assert log_dir.startswith(str(tmp_path / "logs" / "cartpole_balance"))
    assert log_dir.endswith("/torchrunx")
    assert answer["preflight"]["log_root_writable"] is True
    memory = answer["memory"]
    assert memory["total_bytes"] == memory["rollout_bytes"] == 256 * 24 * (16 + 21 + 12)
    assert memory["available_bytes"] > memory["total_bytes"]
    assert memory["summary"].startswith("301 kB per rank (301 kB for a rollout), of ")
    assert list(tmp_path.iterdir()) == []


def test_dry_run_says_what_the_start_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("nothing")
    url = f"file://{tmp_path}"
    for words, message in (
        (f"--load {tmp_path}/file", f"checkpoint {tmp_path}/file: not a complete checkpoint of plain values"),
        (f"--log-root {tmp_path}/file/logs", f"--log-root {tmp_path}/file/logs: cannot be written ({tmp_path}/file is"),
        (f"--checkpoint-url {url}/file/run", f"--checkpoint-url {url}/file/run: "),
        (f"--resume {url}/nothing", f"--resume {url}/nothing: no checkpoint found"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["Cartpole-Balance", "--gpu-ids", "None", "--dry-run", *words.split()])
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    nobody = "s3://bucket/run"  # a plan needs no credentials of a bucket
    for place, resume in ((f"{url}/new/run", []), (f"{url}/new/run", ["--resume", "auto"]), (nobody, [])):
        flags = ["--dry-run", *resume, "--log-root", f"{tmp_path}/logs", "--checkpoint-url", place]
        main(["Cartpole-Balance", "--gpu-ids", "None", *flags])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_one_process_leaves_a_complete_run(tmp_path: Path) -> None:
    done = run(
        "train", "Cartpole-Balance", "--num-envs", "32", "--max-iterations", "5", "--agent.save-interval", "2",
        "--env.rewards.upright.weight", "2.0", "--env.rewards.centered.params.width", "0.25", "--seed", "3",
        cwd=tmp_path, exec_it=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no GPU is visible: running on the CPU" in done.stderr
    assert [line.split(" | ")[0] for line in done.stdout.splitlines()] == [f"iteration {i}/5" for i in range(1, 6)]
    for field in ("env steps/s", "reward", "episode length", "elapsed", "remaining"):
        assert field in done.stdout.splitlines()[-1]

    run_dir = only_run_below(tmp_path)
    assert sorted(path.name for path in run_dir.glob("*.pt")) == ["model_2.pt", "model_4.pt", "model_5.pt"]
    checkpoint = torch.load(run_dir / "model_5.pt", weights_only=True)
    assert checkpoint["iter"] == 5
    drawn = checkpoint["ranks"][0]["rng"]["python"]["words"].tolist()
    untouched = random.Random(derive_seed(3, Stream.PYTHON)).getstate()[1]
    assert drawn == list(untouched), "an import after the seed has drawn numbers, and one in a spawned rank has not"
    assert [row["iteration"] for row in read_metrics(run_dir)] == [1, 2, 3, 4, 5]
    (listed,) = json.loads(run("mjtrain", "runs", "cartpole-balance", "--json", cwd=tmp_path).stdout)
    assert (listed["iterations"], listed["state"], listed["num_checkpoints"]) == (5, "done", 3)
    env, agent, launch = (
        yaml.safe_load((run_dir / "params" / f"{name}.yaml").read_text()) for name in ("env", "agent", "launch")
    )
    assert env["rewards"]["upright"] == {
        "func": "mjtrain_tasks.cartpole_balance.rewards:upright",
        "weight": 2.0,
        "params": {"sensor": "pole_axis"},
    }
    assert env["rewards"]["centered"]["params"] == {"joint": "slider", "width": 0.25}
    assert agent["save_interval"] == 2
    assert (launch["task"], launch["run"]["num_envs"], launch["launch"]["seed"]) == ("Cartpole-Balance", 32, 3)
    (events,) = run_dir.glob("events.out.tfevents.*")
    scalars = EventAccumulator(str(events)).Reload()
    assert [event.step for event in scalars.Scalars("env_steps_total")] == [1, 2, 3, 4, 5]
    assert not (run_dir / "torchrunx").exists()


def test_two_workers_leave_one_set_of_files_and_a_log_each(tmp_path: Path) -> None:
    done = run(
        "train", "Cartpole-Balance", "--gpu-ids", "None", "--num-workers", "2", "--num-envs-total", "32",
        "--total-env-steps", "2000", cwd=tmp_path, exec_it=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    header = "2 ranks on cpu (native engine) x 16 envs x 24 steps = 768 env steps per iteration; 3 iterations left"
    assert header in done.stderr
    assert [line.split(" | ")[0] for line in done.stdout.splitlines()] == [f"iteration {i}/3" for i in range(1, 4)]
    run_dir = only_run_below(tmp_path)
    assert [path.name for path in run_dir.glob("*.pt")] == ["model_3.pt"]
    assert len(list(run_dir.glob("events.out.tfevents.*"))) == 1
    rows = read_metrics(run_dir)
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert [row["env_steps_total"] for row in rows] == [768, 1536, 2304]
    assert {(row["world_size"], row["num_envs_total"]) for row in rows} == {(2, 32)}
    logs = {path.name: path.read_text() for path in (run_dir / "torchrunx").rglob("*.log")}
    assert {"localhost[0].log", "localhost[1].log"} <= set(logs)
    assert "iteration 3/3" in logs["localhost[0].log"]
    launch = yaml.safe_load((run_dir / "params" / "launch.yaml").read_text())
    assert launch["plan"]["log_dir"] == str(run_dir / "torchrunx")
    assert not list(run_dir.glob("crash/*"))


TASK_FILE = """
from dataclasses import replace
import torch
from mjtrain import RewardTerm
from mjtrain.env.catalog import load_task

def one(env):
    return torch.ones(env.num_envs)

def failing(env):
    if env.num_envs > 2 and env.episode_step.max() > 1:  # not in the dry step before the training
        raise RuntimeError("the gripper is stuck")
    return torch.ones(env.num_envs)

def make():
    task = load_task("Cartpole-Balance")
    return replace(task, num_envs=8, env=replace(task.env, rewards={"one": RewardTerm(func=one, weight=50.0)}))

def make_failing():
    task = load_task("Cartpole-Balance")
    return replace(task, num_envs=8, env=replace(task.env, rewards={"bad": RewardTerm(func=failing, weight=1.0)}))
"""


def test_a_task_of_ones_own_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TASK_FILE)
    done = run("train", "mine.py:make", "--gpu-ids", "None", "--max-iterations", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run_dir = only_run_below(tmp_path)
    assert run_dir.parent.name == "mine_make"
    last = read_metrics(run_dir)[-1]
    assert last["mean_reward"] == pytest.approx(last["mean_episode_length"])


def test_a_failure_keeps_its_traceback_and_ends_with_status_1(tmp_path: Path) -> None:
    """In the command's own process; tests/faults has it for processes of their own."""
    (tmp_path / "mine.py").write_text(TASK_FILE)
    done = run("train", "mine.py:make_failing", "--gpu-ids", "None", cwd=tmp_path)
    assert done.returncode == 1
    assert "RuntimeError: the gripper is stuck" in done.stderr
    assert "mine.py" in done.stderr
    assert "the gripper is stuck" in next(only_run_below(tmp_path).glob("crash/rank_*.txt")).read_text()
    head, line = run("mjtrain", "runs", cwd=tmp_path).stdout.splitlines()
    assert head.split() == ["started", "run", "iterations", "reward", "checkpoints", "state"]
    assert line.endswith("failed: RuntimeError: the gripper is stuck")


def test_no_logger_leaves_metrics_jsonl_only(tmp_path: Path) -> None:
    run("train", "Cartpole-Balance", "--num-envs", "4", "--max-iterations", "2", "--logger", "none", cwd=tmp_path)
    run_dir = only_run_below(tmp_path)
    assert sorted(path.name for path in run_dir.iterdir()) == [
        ".lock", "code", "metrics.jsonl", "model_2.pt", "params", "robot",
    ]  # fmt: skip


def test_train_from_python(tmp_path: Path) -> None:
    launch = mjtrain.LaunchConfig(gpu_ids=None)
    result = mjtrain.train("cartpole-swingup", num_envs=8, max_iterations=2, log_root=str(tmp_path), launch=launch)
    assert result.run_dir.parent == tmp_path / "cartpole_swingup"
    assert result.checkpoint == result.run_dir / "model_2.pt"
    assert result.checkpoint.is_file()
    assert result.metrics["iteration"] == 2
    with pytest.raises(ValueError, match="no option num_env;"):
        mjtrain.train("Cartpole-Balance", num_env=8)


SLEEPING_TASK = """
import os, time
from dataclasses import replace
import torch
from mjtrain import RewardTerm
from mjtrain.env.catalog import load_task

def sleepy(env):
    if os.environ.get("RANK") == "1":
        time.sleep(0.1)
    return torch.ones(env.num_envs)

def make():
    task = load_task("Cartpole-Balance")
    return replace(task, num_envs=8, env=replace(task.env, rewards={"sleepy": RewardTerm(func=sleepy, weight=1.0)}))
"""


def test_a_rank_that_sleeps_is_named_and_its_log_is_where_the_variable_says(tmp_path: Path) -> None:
    """With a task of the user's own file, which the ranks load as well."""
    (tmp_path / "sleepy.py").write_text(SLEEPING_TASK)
    command = [str(commands.BIN / "train"), "sleepy.py:make", "--gpu-ids", "None", "--num-workers", "2"]
    command += ["--agent.num-steps-per-env", "3", "--max-iterations", "100000", "--torchrunx-log-dir", "mine"]
    job = Job(command, tmp_path, {"TORCHRUNX_LOG_DIR": "theirs"})
    job.wait_for("warning: rank 1 is steadily slower than the others")
    assert job.finish(job.kill(signal.SIGTERM)).status == 143
    rows = read_metrics(only_run_below(tmp_path))
    assert str([1] * STEADY_ITERATIONS)[1:-1] in str([row["slowest_rank"] for row in rows])
    assert {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("localhost*.log")} == {"theirs"}
    assert statistics.median(row["collect_time_max_s"] - row["collect_time_min_s"] for row in rows) > 0.1
