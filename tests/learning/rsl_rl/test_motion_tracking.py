"""A training that follows a motion, with what its worlds share over ranks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import LaunchConfig, TrainConfig
from mjtrain.runtime.rank import RankContext
from mjtrain_tasks.quadruped_track import make_task
from support.resuming import assert_same, train_straight_and_resumed


def _train(context: RankContext, config: TrainConfig, path: Path) -> tuple[list[Any], dict[str, Any]]:
    found = train_straight_and_resumed(context, config, path)
    return found, torch.load(path, weights_only=True) if context.is_main else {}


def test_a_resumed_training_ends_with_the_bits_of_the_undisturbed_one(tmp_path: Path) -> None:
    """With two ranks, whose failures are added up: `check_drift` in there compares the totals, too."""
    task = make_task()
    config = make_train_config(task, num_envs=12, agent=replace(task.agent, num_steps_per_env=30))
    launch = LaunchConfig(gpu_ids=None, num_workers=2, num_threads=1)
    (straight, resumed, *runs), checkpoint = mjtrain.launch(_train, config, tmp_path / "model_2.pt", launch=launch)
    assert_same(straight, resumed)
    assert_same(*runs)
    (zero,), (one,) = (rank["env"]["shared"].values() for rank in checkpoint["ranks"])
    assert_same(zero, one)
    assert zero["total"].sum() > 5
    assert straight[-1]["curriculum/sampling"] < 1
