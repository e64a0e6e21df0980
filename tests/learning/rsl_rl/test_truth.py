"""Metrics of the whole job, drift and stragglers, in real jobs of several ranks."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import LaunchConfig, RewardTerm
from mjtrain.learning.divergence import RanksDriftedError
from mjtrain.learning.rsl_rl.construct import Runner
from mjtrain.runtime.rank import RankContext
from mjtrain.training.train_rank import make_env


def workers(count: int) -> LaunchConfig:
    return LaunchConfig(gpu_ids=None, num_workers=count, num_threads=1)


def make_runner(context: RankContext, num_envs: int = 16) -> Runner:
    config = make_train_config("Cartpole-Balance", num_envs=num_envs)
    return Runner(context, make_env(context, config), config.agent)


def _constant(env: Any, *, value: float) -> torch.Tensor:
    return torch.full((env.num_envs,), value)


def _train_unequal_ranks(context: RankContext) -> tuple[list[dict], float, list[int]]:
    """Rank 0 earns +1 a step and its episodes are short; rank 1 earns -9 and its episodes are long."""
    config = make_train_config("Cartpole-Swingup", num_envs=8)
    value, seconds = ((1.0, 0.1), (-9.0, 0.16))[context.rank]
    reward = RewardTerm(func=_constant, weight=50.0, params={"value": value})
    config = replace(config, env=replace(config.env, episode_length_s=seconds, rewards={"wage": reward}))
    env = make_env(context, config)
    runner = Runner(context, env, config.agent)
    env.reset(torch.ones(8, dtype=torch.bool))
    env.statistics.pop()
    metrics = [result.metrics for result in runner.iterate(2)]
    length = env.max_episode_steps
    num_episodes = [8 * ((iteration * 24) // length - ((iteration - 1) * 24) // length) for iteration in (1, 2)]
    return metrics, value * length, num_episodes


def _gather(context: RankContext, function: Any) -> list[Any]:
    everybody: list[Any] = [None] * context.world_size
    dist.all_gather_object(everybody, function(context))
    return everybody


def test_rewards_of_unequal_ranks_are_reported_as_their_true_mean() -> None:
    (metrics, return_0, counts_0), (same, return_1, counts_1) = mjtrain.launch(
        _gather, _train_unequal_ranks, launch=workers(2)
    )
    assert (return_0, return_1) == (5.0, -72.0)
    assert counts_0 != counts_1
    assert metrics == same
    for row, count_0, count_1 in zip(metrics, counts_0, counts_1, strict=True):
        expected = (return_0 * count_0 + return_1 * count_1) / (count_0 + count_1)
        assert row["mean_reward"] == pytest.approx(expected)
        assert row["reward/wage"] == pytest.approx(expected)
        assert row["mean_episode_length"] == pytest.approx((5 * count_0 + 8 * count_1) / (count_0 + count_1))
        assert row["termination/time_out"] == 1


def _bits(parameter: Any) -> torch.Tensor:
    return parameter.data.view(torch.int32)


def _drift(context: RankContext, where: str, culprit: int) -> str:
    runner = make_runner(context)
    list(runner.iterate(2))
    runner.check_drift()
    if context.rank == culprit:
        actor = runner.alg.get_policy()
        if where == "parameter":
            _bits(actor.mlp[2].weight)[3, 5] ^= 1 << 12  # an update may round the last bits away on all ranks
        elif where == "normaliser":
            actor.obs_normalizer._var[0, 1] *= 1.0001  # pyright: ignore[reportIndexIssue]
        elif where == "optimiser":
            runner.alg.optimizer.state_dict()["state"][4]["exp_avg"][0] += 1e-3
        else:
            other = {name: value + 0.01 for name, value in runner.alg.save()["critic_state_dict"].items()}
            runner.alg.load({"critic_state_dict": other}, {"critic": True}, strict=True)
    try:
        list(runner.iterate(3))
        runner.check_drift()
    except RanksDriftedError as error:
        return str(error)
    return "nothing was noticed"


DRIFTS = {
    "parameter": "actor_state_dict.mlp.",
    "normaliser": "actor_state_dict.obs_normalizer._",
    "optimiser": "_state_dict.",
    "checkpoint": "critic_state_dict.",
}
"""What one rank changes, and the beginning of the name that is reported."""


def _drift_in_each_way(context: RankContext) -> dict[str, str]:
    return {where: _drift(context, where, 1) for where in DRIFTS}


def test_a_rank_that_differs_is_found_and_named() -> None:
    for messages in mjtrain.launch(_gather, _drift_in_each_way, launch=workers(3)):
        for where, name in DRIFTS.items():
            message = messages[where]
            assert message.split(" differs")[0].startswith(("actor_state_dict.", "critic_state_dict.")), message
            assert name in message, where
            assert "rank 1 against the other ranks" in message, where


def _flip_every_bit(context: RankContext) -> list[str]:
    """Flip bits of one parameter one after the other and check at once."""
    runner = make_runner(context)
    list(runner.iterate(1))
    weight = _bits(runner.networks["critic"].mlp[0].weight)
    messages = []
    for place in range(0, weight.numel(), 17):
        bit = place % 31
        if context.rank == 1:
            weight.view(-1)[place] ^= 1 << bit
        try:
            runner.check_drift()
            messages.append("nothing was noticed")
        except RanksDriftedError as error:
            messages.append(str(error))
        if context.rank == 1:
            weight.view(-1)[place] ^= 1 << bit
    runner.check_drift()
    return messages


def test_any_flipped_bit_is_found() -> None:
    messages = mjtrain.launch(_flip_every_bit, launch=workers(2))
    assert len(messages) > 10
    for message in messages:
        assert message.startswith("critic_state_dict.mlp.0.weight differs between ranks: rank 1 against rank 0")


def test_one_rank_never_drifts() -> None:
    def check(context: RankContext) -> None:
        make_runner(context).check_drift()

    mjtrain.launch(check, launch=LaunchConfig(gpu_ids=None))


def test_times_of_all_ranks_are_reported() -> None:
    def train(context: RankContext) -> list[dict]:
        return [result.metrics for result in make_runner(context).iterate(2)]

    for row in mjtrain.launch(train, launch=workers(2)):
        for name in ("collect_time", "learn_time", "wait_time"):
            assert 0 <= row[f"{name}_min_s"] <= row[f"{name}_s"] <= row[f"{name}_max_s"]
        assert row["slowest_rank"] in (0, 1)
        assert len(row["busy_time_by_rank_s"]) == 2
