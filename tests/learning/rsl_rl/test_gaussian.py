"""The distribution of actions is that of torch.distributions."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from mjtrain.config import AgentConfig
from mjtrain.learning.rsl_rl.networks import Gaussian
from mjtrain.learning.rsl_rl.policy import ActorPolicy


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


def test_an_actor_without_groups_reads_what_it_was_trained_with() -> None:
    """RSL-RL trains it with the group of its name, or else with `policy`."""
    for name in ("actor", "policy"):
        policy = ActorPolicy(AgentConfig(obs_groups={}), {name: torch.zeros(2, 3)}, 1)
        assert policy.inputs == {name: (3,)}
        assert policy({name: torch.zeros(2, 3)}).shape == (2, 1)
