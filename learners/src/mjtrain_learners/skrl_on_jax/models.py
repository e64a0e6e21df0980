"""skrl's models and normaliser on JAX, and what lies between tensors of torch and arrays of JAX."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.distributed as dist
from skrl.models.jax import DeterministicMixin, GaussianMixin, Model
from skrl.resources.preprocessors.jax import RunningStandardScaler

from mjtrain.learning import Collectives, ModelConfig


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """Copy a tensor into an array on the same device: the environment changes its tensors in place."""
    if tensor.device.type == "cpu":
        return jnp.array(tensor.numpy())
    return jnp.array(jax.dlpack.from_dlpack(tensor.contiguous()), copy=True)


def to_torch(array: jax.Array) -> torch.Tensor:
    """Copy an array into a tensor on the same device."""
    return torch.from_dlpack(array.block_until_ready()).clone()


def to_named(tree: Any) -> dict[str, np.ndarray]:
    """Return the arrays of nested containers by names such as "params.Dense_0.kernel"."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}


def from_named(tree: Any, named: Mapping[str, torch.Tensor]) -> Any:
    """Return nested containers with other arrays; those of `named` must have the names and shapes of the tree's."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    found = [
        jax.device_put(
            jnp.array(named[jax.tree_util.keystr(path, simple=True, separator=".")].cpu().numpy(), leaf.dtype),
            leaf.sharding,
        )
        for path, leaf in leaves
    ]
    return jax.tree_util.tree_unflatten(structure, found)


class JobScaler(RunningStandardScaler):
    """skrl's running mean and variance, updated with the moments of all ranks' samples; skrl keeps one per rank.

    With one rank it is skrl's.
    """

    def __init__(self, size: int, *, collectives: Collectives, summed_on: str, **options: Any) -> None:
        """Take what skrl's takes, what adds up over ranks, and the torch device on which that happens."""
        super().__init__(size, **options)
        self._collectives = collectives
        self._summed_on = summed_on

    def __call__(self, x: jax.Array | None, *, train: bool = False, inverse: bool = False) -> jax.Array | None:
        """Normalise, and with `train` take the samples in before; see skrl. Every rank must call it."""
        if not dist.is_initialized():
            return super().__call__(x, train=train, inverse=inverse)
        if train and x is not None:
            self._parallel_variance(*self._measure(x))
        return super().__call__(x, train=False, inverse=inverse)

    def _measure(self, x: jax.Array) -> tuple[jax.Array, jax.Array, int]:
        """Return the mean of all ranks' samples, their variance divided by one less than their number, and that."""
        center = np.asarray(self.running_mean, np.float64)  # all ranks share it, so that no digits are lost
        deviations = (np.asarray(x, np.float64) - center).reshape(-1, center.shape[0])
        mine = np.concatenate([deviations.sum(0), np.square(deviations).sum(0), [len(deviations)]])
        sums = self._collectives.sum(torch.from_numpy(mine).to(self._summed_on)).cpu().numpy()
        size, count = center.shape[0], int(sums[-1])
        mean = sums[:size] / count
        variance = np.maximum(sums[size:-1] - count * mean**2, 0.0) / (count - 1)
        return jnp.asarray(center + mean, jnp.float32), jnp.asarray(variance, jnp.float32), count


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
"""Functions that do what the classes of `mlp_library.ACTIVATIONS` do in torch."""


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
        """Describe the layers; options as of skrl's GaussianMixin, spaces as of its Model.

        Flax makes copies of a module from its fields, of which `config` is one.
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
