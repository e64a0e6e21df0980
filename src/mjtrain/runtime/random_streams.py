"""Seeds of a rank's random streams, one for each purpose."""

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """What a stream of random numbers is for. The numbers are part of what a seed means, and do not change."""

    TORCH = 0
    """torch's global generators: initial weights, exploration noise, the order of mini-batches."""

    NUMPY = 1
    """NumPy's global generator."""

    PYTHON = 2
    """The generator of Python's `random`."""

    WORLDS = 3
    """An environment: initial states, commands, noise, pushes, randomization."""

    RANDOM_ACTIONS = 4
    """The actions of `play --policy random`."""


def derive_seed(seed: int, stream: Stream) -> int:
    """Return the seed of one stream of a rank.

    Generators of different streams would otherwise return the same numbers: torch's and NumPy's are the same algorithm.
    `numpy.random.SeedSequence` mixes the seed with the stream's number.

    Args:
        seed: Seed of the rank, at least 0.
        stream: The purpose.

    Returns:
        An integer of 32 bits, because generators of torch on the CPU read no more.
    """
    return int(np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(1)[0])
