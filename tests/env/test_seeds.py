"""The worlds' random numbers say nothing about the policy's."""

import pytest
import torch

from mjtrain.env.catalog import load_task
from mjtrain.env.core import derive_worlds_seed
from support.envs import make_env


@pytest.mark.parametrize("seed", [0, 1, 7, 2**63 - 1])
def test_worlds_draw_other_numbers_than_the_policy_of_the_same_rank(seed: int) -> None:
    env = make_env(load_task("Cartpole-Balance").env, seed=seed)
    worlds = torch.Generator().manual_seed(env.rng.initial_seed())
    policy = torch.Generator().manual_seed(seed)  # as torch's global generator in a rank
    drawn, noise = (torch.rand(1000, generator=source) for source in (worlds, policy))
    assert len({*drawn.tolist()} & {*noise.tolist()}) < 5


def test_what_a_seed_means_does_not_change() -> None:
    assert derive_worlds_seed(3) == 118549108
    assert derive_worlds_seed(0) != derive_worlds_seed(1)
