"""Between tensors of torch and arrays of JAX, and nested arrays by their names."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch


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
