"""Whole trainings on a GPU. No GPU was at hand when they were written; `benchmarks/gpu.sh` runs them."""

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
from mjtrain.config import EnvConfig, LaunchConfig
from mjtrain.env.catalog import load_task
from mjtrain.runs.checkpoint import load_checkpoint
from mjtrain.runtime.rank import RankContext
from mjtrain.training.train_rank import TrainResult

pytestmark = [pytest.mark.gpu, pytest.mark.process]

GPU = LaunchConfig(gpu_ids=(0,))
TWO_GPUS = LaunchConfig(gpu_ids=(0, 1))

needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def train(task: str, log_root: Path, launch: LaunchConfig = GPU, **options: Any) -> TrainResult:
    return mjtrain.train(task, seed=1, logger="none", log_root=str(log_root), launch=launch, **options)


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


def test_a_resumed_training_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """To single precision and not bit for bit: that torch's own sums on a GPU repeat was not shown."""
    env = load_task("Quadruped-Velocity-Flat").env
    assert isinstance(env, EnvConfig)
    options: dict[str, Any] = {"num_envs": 256, "env": replace(env, warp=replace(env.warp, deterministic=True))}
    straight = train("Quadruped-Velocity-Flat", tmp_path / "straight", max_iterations=4, **options)
    first = train("Quadruped-Velocity-Flat", tmp_path / "resumed", max_iterations=2, **options)
    second = train(
        "Quadruped-Velocity-Flat", tmp_path / "resumed", max_iterations=4, resume=str(first.run_dir), **options
    )
    assert [line["iteration"] for line in iterations_of(second.run_dir)] == [1, 2, 3, 4]
    ours, theirs = (load_checkpoint(run.checkpoint, "cpu")["actor_state_dict"] for run in (straight, second))
    for name, tensor in ours.items():
        assert torch.allclose(tensor.float(), theirs[name].float(), atol=1e-3), name


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
