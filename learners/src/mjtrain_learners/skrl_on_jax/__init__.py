"""skrl's PPO on JAX."""

import importlib
import importlib.util
import logging
import os

from mjtrain.learning import PpoConfig, RankContext, RequestError, TrainConfig
from mjtrain_learners.mlp_library import MlpLibrary, check_agent, check_settings, environment
from mjtrain_learners.skrl_settings import OWN_SETTINGS, check_mini_batches, check_own

_SETTINGS = {name: value for name, value in OWN_SETTINGS.items() if name != "mixed_precision"}

_CUDA = ("jax_cuda13_plugin", "jax_cuda12_plugin")
"""Modules of which one is there if JAX can use NVIDIA GPUs."""

_OF_A_JOB = ("WORLD_SIZE", "JAX_WORLD_SIZE")
"""Where skrl sees more than one rank here, its import starts a process group over NCCL, or JAX's own."""

_XLA_THREADS = "PJRT_NPROC"
"""How many threads XLA gives each of its pools on a CPU; by default the number of cores."""


def has_cuda() -> bool:
    """Return whether a plugin of JAX for NVIDIA GPUs is installed."""
    return any(importlib.util.find_spec(module) for module in _CUDA)


class SkrlOnJax(MlpLibrary):
    """`Library` for skrl on JAX."""

    modules = ("skrl", "jax", "flax", "optax")
    install = "mjtrain-learners[skrl-jax]"
    module = "mjtrain_learners.skrl_on_jax.ppo"
    format = "skrl_jax"

    def check(self, config: TrainConfig, world_size: int, device: str) -> tuple[str, ...]:
        """Refuse what skrl on JAX has no counterpart for."""
        notes = check_agent(config.agent, "skrl")
        check_settings(config.learner.settings, _SETTINGS, "skrl on JAX")
        # Divergences are those of all ranks, so these end their epochs together.
        check_own(config.agent, config.learner.settings, config.num_envs, world_size=1)
        check_mini_batches(config.agent, config.learner.settings, config.num_envs, world_size)
        algorithm = config.agent.algorithm
        if isinstance(algorithm, PpoConfig) and algorithm.use_mixed_precision:
            raise RequestError("--agent.algorithm.use-mixed-precision: skrl on JAX has single precision; use skrl")
        if device != "cpu" and not has_cuda():
            raise RequestError(
                '--learner skrl_jax: JAX has no CUDA here; pip install "jax[cuda13]", or use --gpu-ids None'
            )
        return notes

    def start(self, context: RankContext) -> None:
        """Import skrl and JAX; see `start_skrl`."""
        start_skrl(context)


def start_skrl(context: RankContext) -> None:
    """Start JAX on the rank's device with the rank's threads, and import skrl, which takes the rank for the only one.

    The ranks sum over the process group that they have: see `ppo.JobPpo`. Random numbers of numpy, which skrl shuffles
    samples with, stay those of the seed: the first import of what skrl needs draws some.
    """
    import numpy as np

    random_state = np.random.get_state()  # before JAX is imported
    import jax

    with environment({_XLA_THREADS: str(context.num_threads), **dict.fromkeys(_OF_A_JOB)}):
        if context.device == "cpu":
            jax.config.update("jax_platforms", "cpu")
            device = jax.devices()[0]
        else:
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the engine and torch need memory too
            device = jax.devices("cuda")[int(context.device.removeprefix("cuda:"))]
        import skrl

        importlib.import_module(SkrlOnJax.module)
    np.random.set_state(random_state)
    skrl.logger.setLevel(logging.WARNING)
    skrl.config.jax.device = device
    seed = context.seed
    if seed >= 2**32:  # a key is made of 32 bits
        seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
    skrl.config.jax.key = seed


LIBRARY = SkrlOnJax()
