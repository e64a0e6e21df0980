"""What a checkpoint of a training with skrl on JAX holds of the policy."""

from collections.abc import Mapping
from typing import Any

from mjtrain_learners.policy import Weights

_PARTS = {"kernel": "weight", "bias": "bias"}


def read_weights(content: Mapping[str, Any]) -> Weights:
    """Return the weights of the policy as `mlp.make_layers` names them; raises a KeyError if there are none.

    Flax numbers the linear layers, and torch the layers and the activations between them. A kernel of Flax is the
    transpose of a weight of torch.
    """
    layers = {}
    for name, value in content["policy"].items():
        _, *layer, part = name.split(".")
        if layer:
            number = 2 * int(layer[0].removeprefix("Dense_"))
            layers[f"{number}.{_PARTS[part]}"] = value.T if part == "kernel" else value
    scaler = content.get("observation_preprocessor")
    if scaler is None:
        return Weights(layers=layers)
    options = content["observation_preprocessor_options"]
    return Weights(
        layers=layers,
        mean=scaler["running_mean"],
        scale=scaler["running_variance"].sqrt() + options["epsilon"],
        clip=options["clip_threshold"],
    )
