"""The inputs of an exported network: the flat groups side by side, and each image group."""

import torch

from mjtrain.learning.learner import Policy

FLAT = "observations"
"""Name of the input with the flat groups side by side, float32, shape (batch, size). The input of an image group has
the name of the group."""


def list_image_inputs(policy: Policy) -> list[str]:
    """Return the image groups that a policy reads, in the order of its inputs."""
    return [group for group, shape in policy.inputs.items() if len(shape) > 1]


def arrange_inputs(policy: Policy, observations: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the inputs of the exported network by name, in order: the flat groups side by side, and each image.

    Observations are by group, shape (batch, *shape) each.
    """
    images = list_image_inputs(policy)
    flat = [observations[group] for group in policy.inputs if group not in images]
    arranged = {FLAT: torch.cat(flat, dim=1)} if flat else {}
    return arranged | {group: observations[group] for group in images}


def make_examples(policy: Policy) -> dict[str, torch.Tensor]:
    """Return inputs of zeros, two of each."""
    zeros = {group: torch.zeros(2, *shape, dtype=policy.dtypes[group]) for group, shape in policy.inputs.items()}
    return arrange_inputs(policy, zeros)
