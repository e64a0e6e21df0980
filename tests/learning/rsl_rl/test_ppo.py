"""Actor and critic that learn at the same time learn what they learn one after the other."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mjtrain import LaunchConfig, RankContext, TrainConfig, launch
from mjtrain.api import make_train_config
from mjtrain.learning.rsl_rl.ppo import SideBySide
from support.resuming import assert_same, make_runner, without_times


def learn(context: RankContext, config: TrainConfig, num_threads: int) -> tuple[int, list[Any]]:
    """Return how often the critic was asked beside the actor, and what came of two iterations."""
    asked = 0

    class Counted(SideBySide):
        def __call__(self, observations: Any, **others: Any) -> torch.Tensor:
            nonlocal asked
            asked += 1
            return super().__call__(observations, **others)

    torch.set_num_threads(num_threads)
    runner = make_runner(context, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mjtrain.learning.rsl_rl.ppo.SideBySide", Counted)
        metrics = [without_times(result.metrics) for result in runner.iterate(2)]
    assert torch.get_num_threads() == num_threads
    return asked, [metrics, runner.policy_weights()]


@pytest.mark.parametrize(("task", "num_ranks"), [("Quadruped-Velocity-Flat", 1), ("Cartpole-Balance", 2)])
def test_two_threads_learn_what_one_does(task: str, num_ranks: int) -> None:
    """The first has equivariant networks; with two ranks the gradients of both networks are averaged in one call."""
    config = make_train_config(task, num_envs=16)
    workers = {"gpu_ids": None, "num_workers": num_ranks}
    alone, one = launch(learn, config, 1, launch=LaunchConfig(**workers))
    beside, other = launch(learn, config, 2, launch=LaunchConfig(**workers))
    assert (alone, beside) == (0, 2 * 5 * 4)  # iterations, epochs, mini-batches
    assert_same(one, other)


@pytest.mark.parametrize("recurrent", ["actor", "critic"])
def test_where_one_network_has_a_memory_they_learn_one_after_the_other(recurrent: str) -> None:
    """Mini-batches then come from another generator."""
    config = make_train_config("Cartpole-Balance", num_envs=8)
    network = replace(getattr(config.agent, recurrent), class_name="RNNModel", rnn_type="gru", rnn_hidden_dim=8)
    config = replace(config, agent=replace(config.agent, **{recurrent: network}))
    asked, (metrics, _) = launch(learn, config, 2, launch=LaunchConfig(gpu_ids=None))
    assert (asked, len(metrics)) == (0, 2)


def test_networks_that_share_parameters_learn_one_after_the_other() -> None:
    def can_split(context: RankContext, config: TrainConfig) -> tuple[bool, bool]:
        alg: Any = make_runner(context, config).alg
        torch.set_num_threads(2)
        before = alg._can_split()
        alg.critic.shared = next(alg.actor.parameters())  # as with share_cnn_encoders
        return before, alg._can_split()

    config = make_train_config("Cartpole-Balance", num_envs=4)
    assert launch(can_split, config, launch=LaunchConfig(gpu_ids=None)) == (True, False)
