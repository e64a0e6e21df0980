"""Whole trainings on a GPU; `benchmarks/gpu.sh` runs them."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import LaunchConfig
from mjtrain.runtime.rank import RankContext
from mjtrain.training.train_rank import TrainResult
from support.resuming import assert_same, make_runner

pytestmark = [pytest.mark.gpu, pytest.mark.process]

GPU = LaunchConfig(gpu_ids=(0,))
TWO_GPUS = LaunchConfig(gpu_ids=(0, 1))

needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def train(task: str, log_root: Path, launch: LaunchConfig = GPU, **options: Any) -> TrainResult:
    return mjtrain.train(task, logger="none", log_root=str(log_root), launch=replace(launch, seed=1), **options)


def iterations_of(run_dir: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "event" not in line]


@pytest.mark.supports("training", task="Cartpole-Balance", engine="warp")
def test_a_training_learns(tmp_path: Path) -> None:
    run = train("Cartpole-Balance", tmp_path, num_envs=1024, max_iterations=60)
    assert run.metrics["mean_episode_length"] > 400
    assert run.metrics["nan_resets"] == run.metrics["overflow/contacts"] == run.metrics["overflow/constraints"] == 0


@pytest.mark.supports("training", task="{task}", engine="warp")
@pytest.mark.parametrize("task", ["Quadruped-Velocity-Rough", "Hand-Reorient-Cube", "Arm-Lift-Cube"])
def test_tasks_with_contacts_have_room_for_them(task: str, tmp_path: Path) -> None:
    run = train(task, tmp_path, num_envs=512, max_iterations=5)
    found = iterations_of(run.run_dir)
    assert [line["overflow/contacts"] + line["overflow/constraints"] for line in found] == [0] * 5
    assert sum(line["nan_resets"] for line in found) == 0


@pytest.mark.supports("cameras", task="Cartpole-Balance-Vision", engine="warp")
def test_a_policy_learns_from_images(tmp_path: Path) -> None:
    run = train("Cartpole-Balance-Vision", tmp_path, num_envs=128, max_iterations=3)
    assert run.metrics["iteration"] == 3


def test_a_resumed_training_begins_with_the_bits_that_were_saved(tmp_path: Path) -> None:
    """What follows has other last bits: MuJoCo Warp 4.0 does not order constraint rows, not even when deterministic."""

    def save_and_resume(context: RankContext, path: Path) -> list[Any]:
        config = make_train_config("Quadruped-Velocity-Flat", num_envs=256, engine="warp")
        runner, resumed = make_runner(context, config), make_runner(context, config)
        list(runner.iterate(2))
        runner.save(path, {"task": config.task})
        assert resumed.resume(path, config.task) is None
        return [
            (learner.iteration, learner.policy_weights(), learner.env.env.state_dict(), learner.env.env.observe())
            for learner in (runner, resumed)
        ]

    assert_same(*mjtrain.launch(save_and_resume, tmp_path / "model.pt", launch=GPU))


@pytest.mark.supports("launch", start="several ranks on this host")
@needs_two_gpus
def test_two_gpus_stay_equal_over_nccl(tmp_path: Path) -> None:
    def look(context: RankContext) -> tuple[str, str, float]:
        mine = torch.ones(1, device=context.device) * (context.rank + 1)
        dist.all_reduce(mine)
        return dist.get_backend(), torch.cuda.get_device_name(), mine.item()

    backend, _, total = mjtrain.launch(look, launch=TWO_GPUS)
    assert (backend, total) == ("nccl", 3.0)
    run = train("Quadruped-Velocity-Flat", tmp_path, TWO_GPUS, num_envs=256, max_iterations=3, drift_check_interval=1)
    assert (run.metrics["world_size"], run.metrics["num_envs_total"]) == (2, 512)


def test_a_run_is_played_and_drawn_by_egl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "egl")
    run = train("Cartpole-Balance", tmp_path, num_envs=64, max_iterations=2)
    video = tmp_path / "video.mp4"
    command = [sys.executable, "-m", "mjtrain", "play", str(run.run_dir), "--gpu-ids", "0", "--num-envs", "4"]
    subprocess.run([*command, "--video", str(video), "--video-length-s", "1"], check=True, timeout=600)
    assert video.stat().st_size > 1000
