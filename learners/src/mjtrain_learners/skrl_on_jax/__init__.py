"""skrl's PPO on JAX."""

import importlib.util
from typing import TYPE_CHECKING

from mjtrain.learning import PpoConfig, RankContext, RequestError, TrainConfig
from mjtrain_learners.agent_check import check_agent, check_settings
from mjtrain_learners.mlp_library import MlpLibrary
from mjtrain_learners.skrl_settings import OWN_SETTINGS, check_own

if TYPE_CHECKING:
    from mjtrain_learners.mlp_library import Build, ReadWeights

_SETTINGS = {name: value for name, value in OWN_SETTINGS.items() if name != "mixed_precision"}

_CUDA = ("jax_cuda13_plugin", "jax_cuda12_plugin")
"""Modules of which one is there if JAX can use NVIDIA GPUs."""


def has_cuda() -> bool:
    """Return whether a plugin of JAX for NVIDIA GPUs is installed."""
    return any(importlib.util.find_spec(module) for module in _CUDA)


class SkrlOnJax(MlpLibrary):
    """`learners.library.Library` for skrl on JAX."""

    modules = ("skrl", "jax", "flax", "optax")
    install = "mjtrain-learners[skrl-jax]"

    def check(self, config: TrainConfig, world_size: int, device: str) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse what skrl on JAX has no counterpart for."""
        notes = check_agent(config.agent, "skrl")
        check_settings(config.learner.settings, _SETTINGS, "skrl on JAX")
        check_own(config.agent, config.learner.settings, world_size=1)  # divergences are those of all ranks
        algorithm = config.agent.algorithm
        if isinstance(algorithm, PpoConfig) and algorithm.use_mixed_precision:
            raise RequestError("--agent.algorithm.use-mixed-precision: skrl on JAX has single precision; use skrl")
        if device != "cpu" and not has_cuda():
            raise RequestError(
                '--learner skrl_jax: JAX has no CUDA here; pip install "jax[cuda13]", or use --gpu-ids None'
            )
        return notes

    def start(self, context: RankContext) -> "Build":
        """Import skrl and JAX, and return what builds the learner."""
        from mjtrain_learners.skrl_on_jax.start import start_skrl

        start_skrl(context)
        from mjtrain_learners.skrl_on_jax.learner import make_learner

        return make_learner

    def weights_reader(self) -> "ReadWeights":
        """Return what finds the policy's weights in a checkpoint."""
        from mjtrain_learners.skrl_on_jax.weights import read_weights

        return read_weights


LIBRARY = SkrlOnJax()
