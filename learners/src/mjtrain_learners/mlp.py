"""Networks of fully connected layers, as `ModelConfig` describes them."""

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

ACTIVATIONS = {
    "elu": "ELU",
    "selu": "SELU",
    "relu": "ReLU",
    "crelu": "CELU",
    "lrelu": "LeakyReLU",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "softplus": "Softplus",
    "gelu": "GELU",
    "swish": "SiLU",
    "mish": "Mish",
    "identity": "Identity",
}
"""Classes in torch.nn by the names that configs use."""


def make_layers(num_inputs: int, hidden_dims: "Sequence[int]", num_outputs: int, activation: str) -> "nn.Sequential":
    """Build a network: hidden layers, each with its activation, and a linear output."""
    from torch import nn  # seconds of import, which a check of a config need not spend

    widths = [num_inputs, *hidden_dims]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), make_activation(activation)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))


def make_activation(activation: str) -> "nn.Module":
    """Build an activation from a name of `ACTIVATIONS`."""
    from torch import nn

    return getattr(nn, ACTIVATIONS[activation])()
