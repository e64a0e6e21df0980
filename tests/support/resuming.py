"""Trainings that are stopped and resumed, compared bit for bit with ones that are not."""

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import mjtrain
from mjtrain.config import LaunchConfig, TrainConfig
from mjtrain.learning.rsl_rl.construct import Runner
from mjtrain.runs.checkpoint import load_checkpoint
from mjtrain.runtime.rank import RankContext
from mjtrain.training.train_rank import make_env

TIMES = ("env_steps_per_second", "_time_", "_time_s", "slowest_rank")
"""What may differ between two runs: how long things took, and which rank the others waited for. Nothing else."""


def make_runner(context: RankContext, config: TrainConfig) -> Runner:
    return Runner(context, make_env(context, config), config.agent, config.learner.settings)


def check_resuming(config: TrainConfig, path: Path, num_workers: int = 1) -> tuple[list[dict[str, Any]], Any]:
    """Require the same bits of what `train_straight_and_resumed` trains.

    Returns:
        Metrics of the last two iterations, except for times; what was learned and is observed in the end.
    """
    launch = LaunchConfig(gpu_ids=None, num_workers=num_workers, num_threads=1)
    straight, resumed, *runs = mjtrain.launch(train_straight_and_resumed, config, path, launch=launch)
    assert straight == resumed
    assert_same(*runs)
    return straight, runs[0]


def train_straight_and_resumed(context: RankContext, config: TrainConfig, path: Path) -> list[Any]:
    """Train four iterations, and again the last two from the checkpoint after the second; compare the last checkpoints.

    Returns:
        Metrics of the last two iterations, except for times, of both; what both have learned and observe in the end.
    """
    straight = make_runner(context, config)
    metrics = []
    for result in straight.iterate(4):
        metrics.append(without_times(result.metrics))
        if result.iteration == 2:
            straight.save(path, {"task": config.task})
    straight.save(path.with_name("straight.pt"), {"task": config.task})
    if context.is_distributed:
        dist.barrier()
    torch.manual_seed(99)
    resumed = make_runner(context, config)
    assert resumed.resume(path, config.task) is None
    again = [without_times(result.metrics) for result in resumed.iterate(4)]
    resumed.save(path.with_name("resumed.pt"), {"task": config.task})
    if context.is_main:
        assert path.with_name("straight.pt").read_bytes() == path.with_name("resumed.pt").read_bytes()
    straight.check_drift()
    return [
        metrics[2:],
        again,
        *((runner.policy_weights(), runner.env.env.observe()) for runner in (straight, resumed)),
    ]


def read_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Read the metrics of a run's iterations, except for times."""
    return read_rows_and_restarts(run_dir)[0]


def read_rows_and_restarts(run_dir: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    rows = [without_times(row) for row in lines if "event" not in row]
    return rows, [row for row in lines if row.get("event") == "restart"]


def assert_same_runs(one: Path, other: Path, iteration: int) -> dict[str, Any]:
    """Compare the metrics of two runs, and a checkpoint bit for bit, except for its infos; return that of the first."""
    assert read_rows(one) == read_rows(other)
    ends = [load_checkpoint(run_dir / f"model_{iteration}.pt", "cpu") for run_dir in (one, other)]
    assert_same(*({key: end[key] for key in end if key != "infos"} for end in ends))
    return ends[0]


def without_times(metrics: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metrics.items() if not any(part in key for part in TIMES)}


def assert_same(one: Any, other: Any) -> None:
    """Compare nested values bit for bit."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    else:
        assert one == other
