"""Trainings that are stopped and resumed, compared bit for bit with ones that are not."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mjtrain.config import TrainConfig
from mjtrain.learning.rsl_rl.construct import Runner
from mjtrain.runtime.rank import RankContext
from mjtrain.training.train_rank import make_env

TIMES = ("env_steps_per_second", "_time_", "_time_s", "slowest_rank")


def make_runner(context: RankContext, config: TrainConfig) -> Runner:
    return Runner(context, make_env(context, config), config.agent, config.learner.settings)


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
