"""Recurrent networks: what they remember is part of a checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import LaunchConfig, TrainConfig
from mjtrain.learning.library import check_learner
from mjtrain.learning.rsl_rl.policy import ActorPolicy
from mjtrain.runs.checkpoint import load_checkpoint, save_checkpoint
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from support.resuming import check_resuming, make_runner


def recurrent(actor: str = "lstm", critic: str | None = "gru") -> TrainConfig:
    """A small task whose networks have a memory; None for a critic without one."""
    config = make_train_config("Cartpole-Balance", num_envs=8)
    agent = config.agent
    small = {"class_name": "RNNModel", "rnn_hidden_dim": 8, "hidden_dims": (8,), "rnn_num_layers": 2}
    changed: dict[str, Any] = {"actor": replace(agent.actor, **small, rnn_type=actor)}
    if critic is not None:
        changed["critic"] = replace(agent.critic, **small, rnn_type=critic)
    return replace(config, agent=replace(agent, **changed, num_steps_per_env=12))


@pytest.mark.parametrize(("actor", "critic"), [("lstm", "gru"), ("gru", None)])
def test_a_resumed_training_is_bit_exact(actor: str, critic: str | None, tmp_path: Path) -> None:
    path = tmp_path / "model_2.pt"
    check_resuming(recurrent(actor, critic), path)
    memory = load_checkpoint(path, "cpu")["ranks"][0]["memory"]
    assert {name: len(states) for name, states in memory.items()} == {
        "actor": 2 if actor == "lstm" else 1,
        **({} if critic is None else {"critic": 1}),
    }
    assert all(state.shape == (2, 8, 8) and state.abs().sum() > 0 for states in memory.values() for state in states)


def test_two_ranks_resume_bit_exactly_with_memories_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "model_2.pt"
    check_resuming(recurrent(), path, num_workers=2)
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
        assert runner.networks["actor"].get_hidden_state() is None
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


@pytest.mark.parametrize("network", ["actor", "critic"])
def test_an_lstm_in_bfloat16_is_refused_where_pytorch_has_none(network: str) -> None:
    config = make_train_config("Cartpole-Balance")
    algorithm = replace(config.agent.algorithm, use_mixed_precision=True)

    def check(rnn_type: str, device: str) -> None:
        model = replace(getattr(config.agent, network), class_name="RNNModel", rnn_type=rnn_type)
        agent = replace(config.agent, algorithm=algorithm, **{network: model})
        check_learner(replace(config, agent=agent), 1, device)

    check("gru", "cpu")
    check("lstm", "cuda:0")
    try:
        with torch.amp.autocast("cpu", dtype=torch.bfloat16):  # pyright: ignore[reportPrivateImportUsage]
            torch.nn.LSTM(4, 8)(torch.zeros(3, 2, 4))
    except RuntimeError:
        with pytest.raises(RequestError, match=rf"LSTM in bfloat16 for this CPU; .*--agent\.{network}\.rnn-type gru"):
            check("lstm", "cpu")
    else:
        check("lstm", "cpu")
