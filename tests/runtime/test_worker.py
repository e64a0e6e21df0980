"""Random numbers of one purpose say nothing about those of another."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

import mjtrain
from mjtrain.api import make_train_config
from mjtrain.config import LaunchConfig
from mjtrain.runtime.rank import RankContext
from mjtrain.runtime.worker import Stream, derive_seed
from mjtrain.training.train_rank import make_env

SEEDS = (0, 1, 7, 2**63 - 1)


def draw(rank: RankContext) -> tuple[int, list[list[int]]]:
    """Return torch's seed, and 32 bits at a time from every generator of a rank."""
    worlds = make_env(rank, make_train_config("Cartpole-Balance", num_envs=2))
    fresh = torch.Generator().manual_seed(worlds.rng.initial_seed())
    sources: list[Callable[[], int]] = [
        lambda: int(torch.randint(2**32, (1,))),
        lambda: int(torch.randint(2**32, (1,), generator=fresh)),
        lambda: int(np.random.randint(2**32, dtype=np.uint64)),
        lambda: random.getrandbits(32),
    ]
    return torch.initial_seed(), [[source() for _ in range(8)] for source in sources]


def test_no_two_purposes_and_no_two_seeds_share_a_stream() -> None:
    drawn: set[int] = set()
    for seed in SEEDS:
        of_torch, streams = mjtrain.launch(draw, launch=LaunchConfig(gpu_ids=None, seed=seed))
        assert of_torch == seed
        drawn.update(number for stream in streams for number in stream)
    assert len(drawn) == len(SEEDS) * 4 * 8


def test_actions_of_a_random_policy_are_not_the_numbers_of_the_worlds() -> None:
    assert derive_seed(5, Stream.RANDOM_ACTIONS) not in (5, derive_seed(5, Stream.WORLDS))


@pytest.mark.parametrize(
    ("stream", "seed"), [*zip(Stream, (1645421708, 3451799802, 118549108, 2942680743), strict=True)]
)
def test_what_a_seed_means_does_not_change(stream: Stream, seed: int) -> None:
    assert derive_seed(3, stream) == seed
