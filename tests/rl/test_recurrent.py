"""Recurrent networks: what they remember is part of a checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.checkpoint import load_checkpoint, save_checkpoint
from mjtrain.config import LaunchConfig, TrainConfig
from mjtrain.rank import RankContext
from mjtrain.rl.policy import ActorPolicy
from mjtrain.rl.runner import Runner
from mjtrain.training import make_env

TIMES = ("env_steps_per_second", "_time_", "_time_s", "slowest_rank")


def recurrent(actor: str = "lstm", critic: str | None = "gru") -> TrainConfig:
    """A small task whose networks have a memory; None for a critic without one."""
    config = make_train_config("Cartpole-Balance", num_envs=8)
    agent = config.agent
    small = {"class_name": "RNNModel", "rnn_hidden_dim": 8, "hidden_dims": (8,), "rnn_num_layers": 2}
    changed: dict[str, Any] = {"actor": replace(agent.actor, **small, rnn_type=actor)}
    if critic is not None:
        changed["critic"] = replace(agent.critic, **small, rnn_type=critic)
    return replace(config, agent=replace(agent, **changed, num_steps_per_env=12))


def make_runner(context: RankContext, config: TrainConfig) -> Runner:
    return Runner(context, make_env(context, config), config.agent)


def without_times(metrics: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metrics.items() if not any(part in key for part in TIMES)}


def _train_straight_and_resumed(context: RankContext, config: TrainConfig, path: Path) -> list[Any]:
    straight = make_runner(context, config)
    metrics = []
    for result in straight.iterate(4):
        metrics.append(without_times(result.metrics))
        if result.iteration == 2:
            straight.save(path, {"task": config.task})
    if context.is_distributed:
        dist.barrier()
    torch.manual_seed(99)
    resumed = make_runner(context, config)
    assert resumed.resume(path, config.task) is None
    again = [without_times(result.metrics) for result in resumed.iterate(4)]
    runs = [(runner.alg.save(), runner.env.env.observe()) for runner in (straight, resumed)]
    return [metrics[2:], again, *runs]


def assert_same(one: Any, other: Any) -> None:
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


@pytest.mark.parametrize(("actor", "critic"), [("lstm", "gru"), ("gru", None)])
def test_a_resumed_training_is_bit_exact(actor: str, critic: str | None, tmp_path: Path) -> None:
    path = tmp_path / "model_2.pt"
    straight, resumed, *runs = mjtrain.launch(
        _train_straight_and_resumed, recurrent(actor, critic), path, launch=LaunchConfig(gpu_ids=None, num_threads=1)
    )
    assert straight == resumed
    assert_same(*runs)
    memory = load_checkpoint(path, "cpu")["ranks"][0]["memory"]
    assert {name: len(states) for name, states in memory.items()} == {
        "actor": 2 if actor == "lstm" else 1,
        **({} if critic is None else {"critic": 1}),
    }
    assert all(state.shape == (2, 8, 8) and state.abs().sum() > 0 for states in memory.values() for state in states)


def test_two_ranks_resume_bit_exactly_with_memories_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "model_2.pt"
    straight, resumed, *runs = mjtrain.launch(
        _train_straight_and_resumed, recurrent(), path, launch=LaunchConfig(gpu_ids=None, num_workers=2, num_threads=1)
    )
    assert straight == resumed
    assert_same(*runs)
    zero, one = (rank["memory"] for rank in load_checkpoint(path, "cpu")["ranks"])
    assert not torch.equal(zero["actor"][0], one["actor"][0])


def test_a_checkpoint_without_memory_resumes_with_an_empty_one(tmp_path: Path) -> None:
    config = recurrent()

    def check(context: RankContext) -> int:
        runner = make_runner(context, config)
        list(runner.iterate(1))
        runner.save(tmp_path / "model_1.pt", {"task": config.task})
        content = load_checkpoint(tmp_path / "model_1.pt", "cpu")
        for rank in content["ranks"]:
            del rank["memory"]
        save_checkpoint(tmp_path / "model_1.pt", content)
        assert runner.resume(tmp_path / "model_1.pt", config.task) is None
        assert runner.alg.actor.get_hidden_state() is None
        return len(list(runner.iterate(2)))

    assert mjtrain.launch(check, launch=LaunchConfig(gpu_ids=None, num_threads=1)) == 1


def test_a_policy_forgets_what_it_saw_of_worlds_that_begin_again() -> None:
    config = recurrent()
    generator = torch.Generator().manual_seed(1)
    steps = [{"actor": torch.randn(8, 4, generator=generator)} for _ in range(3)]
    policy = ActorPolicy(config.agent, steps[0], 1)
    first = policy(steps[0])
    assert not torch.equal(policy(steps[0]), first), "it remembers"
    begins = torch.arange(8) % 2 == 0
    policy.reset(begins)
    again = policy(steps[0])
    assert torch.equal(again[begins], first[begins])
    assert not torch.isclose(again[~begins], first[~begins]).any()
