"""Random numbers of one purpose say nothing about those of another."""

import random
from collections.abc import Callable

import numpy as np
import torch

import mjtrain
from mjtrain.config import LaunchConfig
from mjtrain.env.catalog import load_task
from mjtrain.runtime.random_streams import Stream, derive_seed
from mjtrain.runtime.rank import RankContext

SEEDS = (0, 1, 7, 2**63 - 1)


def draw(rank: RankContext) -> list[list[int]]:
    """Draw 32 bits at a time from every generator of a rank, and from the obvious one of the same seed."""
    worlds = mjtrain.make_env(load_task("Cartpole-Balance"), num_envs=2, seed=rank.seed)
    plain = torch.Generator().manual_seed(rank.seed)
    sources: list[Callable[[], int]] = [
        lambda: int(torch.randint(2**32, (1,))),
        lambda: int(torch.randint(2**32, (1,), generator=plain)),
        lambda: int(np.random.randint(2**32, dtype=np.uint64)),
        lambda: random.getrandbits(32),
    ]
    streams = [[source() for _ in range(8)] for source in sources]
    fresh = torch.Generator().manual_seed(worlds.rng.initial_seed())
    return [*streams, [int(torch.randint(2**32, (1,), generator=fresh)) for _ in range(8)]]


def test_no_two_purposes_and_no_two_seeds_share_a_stream() -> None:
    """Nor does what somebody makes of the seed itself, such as an external environment."""
    drawn = [
        tuple(stream) for seed in SEEDS for stream in mjtrain.launch(draw, launch=LaunchConfig(gpu_ids=None, seed=seed))
    ]
    assert len(set(drawn)) == len(SEEDS) * 5


def test_what_a_seed_means_does_not_change() -> None:
    assert [derive_seed(3, stream) for stream in Stream] == [819382448, 1645421708, 3451799802, 118549108, 2942680743]
