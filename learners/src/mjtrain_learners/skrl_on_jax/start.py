"""The start of JAX and skrl in a rank."""

import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from mjtrain.learning import RankContext

_OF_A_JOB = ("WORLD_SIZE", "JAX_WORLD_SIZE")
"""Where skrl sees more than one rank here, its import starts a process group over NCCL, or JAX's own."""

_XLA_THREADS = "PJRT_NPROC"
"""How many threads XLA gives each of its pools on a CPU; by default as many as there are cores."""


def start_skrl(context: RankContext) -> None:
    """Start JAX on the rank's device with the rank's threads, and import skrl, which takes the rank for the only one.

    The ranks sum over the process group that they have: see `ppo.JobPpo`. Random numbers of numpy, which skrl shuffles
    samples with, stay those of the seed: the first import of what skrl needs draws some.

    Args:
        context: This rank.
    """
    random_state = np.random.get_state()
    import jax

    with _environment({_XLA_THREADS: str(context.num_threads), **dict.fromkeys(_OF_A_JOB)}):
        if context.device == "cpu":
            jax.config.update("jax_platforms", "cpu")
            device = jax.devices()[0]
        else:
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the engine and torch need memory too
            device = jax.devices("cuda")[int(context.device.removeprefix("cuda:"))]
        import skrl

        importlib.import_module("mjtrain_learners.skrl_on_jax.learner")
    np.random.set_state(random_state)
    skrl.logger.setLevel(logging.WARNING)
    skrl.config.jax.device = device
    seed = context.seed
    if seed >= 2**32:  # a key is made of 32 bits
        seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
    skrl.config.jax.key = seed


@contextmanager
def _environment(variables: dict[str, str | None]) -> Iterator[None]:
    """Set environment variables, or unset those that are None, for the length of a with block."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
