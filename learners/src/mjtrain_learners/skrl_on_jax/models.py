"""skrl's models, with layers as the agent's config has them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from skrl.models.jax import DeterministicMixin, GaussianMixin, Model

from mjtrain.learning import ModelConfig

ACTIVATIONS = {
    "elu": jax.nn.elu,
    "selu": jax.nn.selu,
    "relu": jax.nn.relu,
    "crelu": jax.nn.celu,
    "lrelu": jax.nn.leaky_relu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "softplus": jax.nn.softplus,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "swish": jax.nn.swish,
    "mish": jax.nn.mish,
    "identity": lambda x: x,
}
"""Functions that do what the classes of `mlp.ACTIVATIONS` do in torch."""


class Actor(GaussianMixin, Model):
    """The policy: means from layers, and one standard deviation for all states."""

    config: ModelConfig = ModelConfig()

    def __init__(
        self,
        *,
        config: ModelConfig,
        options: Mapping[str, Any] = MappingProxyType({}),
        **spaces: Any,
    ) -> None:
        """Describe the layers; flax makes copies of a module from its fields, of which `config` is one.

        Args:
            config: Layers and distribution.
            options: See skrl's GaussianMixin.
            **spaces: See skrl's Model.
        """
        self.config = config
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self, **options)

    @nn.compact
    def __call__(self, inputs: dict[str, Any], role: str = "") -> tuple[jax.Array, dict[str, Any]]:  # noqa: ARG002
        """Return the means, shape (num_samples, num_actions), and the logarithm of the standard deviation."""
        means = _apply_layers(inputs["observations"], self.config, self.num_actions)
        distribution = self.config.distribution_cfg
        assert distribution is not None
        learns_log = distribution.std_type == "log"
        begin = jnp.log(distribution.init_std) if learns_log else distribution.init_std
        std = self.param("log_std" if learns_log else "std", nn.initializers.constant(begin), (self.num_actions,))
        return means, {"log_std": std if learns_log else jnp.log(jnp.clip(std, min=1e-6))}


class Critic(DeterministicMixin, Model):
    """The value function, which reads what skrl calls states."""

    config: ModelConfig = ModelConfig()

    def __init__(self, *, config: ModelConfig, **spaces: Any) -> None:
        """Describe the layers; arguments as of `Actor`."""
        self.config = config
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)

    @nn.compact
    def __call__(self, inputs: dict[str, Any], role: str = "") -> tuple[jax.Array, dict[str, Any]]:  # noqa: ARG002
        """Return the values, shape (num_samples, 1)."""
        return _apply_layers(inputs["states"], self.config, 1), {}


def _apply_layers(x: jax.Array, config: ModelConfig, num_outputs: int) -> jax.Array:
    """Apply hidden layers, each with its activation, and a linear output."""
    for width in config.hidden_dims:
        x = ACTIVATIONS[config.activation](nn.Dense(width)(x))
    return nn.Dense(num_outputs)(x)
