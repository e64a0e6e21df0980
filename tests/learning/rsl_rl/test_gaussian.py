"""The distribution of actions is that of torch.distributions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rsl_rl.models import MLPModel
from torch.distributions import Normal, kl_divergence

from mjtrain.config import AgentConfig, ModelConfig
from mjtrain.learning.rsl_rl.networks import Gaussian
from mjtrain.learning.rsl_rl.policy import ActorPolicy
from mjtrain.runtime.errors import RequestError


@pytest.mark.parametrize("std_type", ["scalar", "log"])
def test_it_is_a_normal_distribution(std_type: str) -> None:
    torch.manual_seed(0)
    old_mean, mean, actions = torch.randn(3, 5, 4, dtype=torch.float64).unbind()
    ours = Gaussian(4, init_std=0.7, std_type=std_type).double()
    ours.update(mean)
    theirs = Normal(mean, torch.full_like(mean, 0.7))
    old = Normal(old_mean, torch.full_like(mean, 0.9))
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions).sum(-1))
    torch.testing.assert_close(ours.entropy, theirs.entropy().sum(-1))
    divergence = ours.kl_divergence((old.mean, old.stddev), ours.params)
    torch.testing.assert_close(divergence, kl_divergence(old, theirs).sum(-1))
    torch.manual_seed(1)
    drawn = ours.sample()
    torch.manual_seed(1)
    torch.testing.assert_close(drawn, theirs.sample())


def test_means_in_bfloat16_give_densities_in_the_precision_of_the_parameters() -> None:
    ours = Gaussian(4)
    ours.update(torch.zeros(5, 4, dtype=torch.bfloat16))
    assert ours.log_prob(torch.zeros(5, 4)).dtype == torch.float32


class ReadsAllSets(MLPModel):
    """A class of a user that looks at the other sets of groups, which a training gives it too."""

    def __init__(self, obs: Any, obs_groups: dict[str, list[str]], *args: Any, **options: Any) -> None:
        super().__init__(obs, obs_groups, *args, **options)
        self.critic_groups = obs_groups["critic"]


def test_an_actor_of_another_class_sees_the_groups_of_all_networks() -> None:
    agent = AgentConfig(actor=ModelConfig(class_name=f"{__name__}:ReadsAllSets"))
    policy = ActorPolicy(agent, {"actor": torch.zeros(2, 3), "critic": torch.zeros(2, 4)}, 1)
    assert policy.network.critic_groups == ["critic"]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([], "actor is a list in the checkpoint, not tensors by name"),
        ({"mlp.0.weight": "x"}, "actor mlp.0.weight is the string 'x' in the checkpoint, not a tensor"),
    ],
)
def test_weights_of_another_type_are_named(weights: Any, words: str) -> None:
    policy = ActorPolicy(AgentConfig(), {"actor": torch.zeros(2, 3)}, 1)
    with pytest.raises(RequestError, match=f"^checkpoint model_1.pt: does not fit the networks of this run: {words}$"):
        policy.load({"actor_state_dict": weights}, Path("model_1.pt"))


def test_an_actor_without_groups_reads_what_it_was_trained_with() -> None:
    """RSL-RL trains it with the group of its name, or else with `policy`."""
    for name in ("actor", "policy"):
        policy = ActorPolicy(AgentConfig(obs_groups={}), {name: torch.zeros(2, 3)}, 1)
        assert policy.inputs == {name: (3,)}
        assert policy({name: torch.zeros(2, 3)}).shape == (2, 1)
