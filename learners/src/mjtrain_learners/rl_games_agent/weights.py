"""What a checkpoint of a training with rl_games holds of the policy."""

from collections.abc import Mapping
from typing import Any

from mjtrain_learners.policy import Weights

_LAYERS, _OUTPUT, _NORMALISER = "a2c_network.actor_mlp.", "a2c_network.mu.", "running_mean_std."


def read_weights(content: Mapping[str, Any]) -> Weights:
    """Return the weights of the policy; raises a KeyError if there are none."""
    model = content["model"]
    layers = {name.removeprefix(_LAYERS): value for name, value in model.items() if name.startswith(_LAYERS)}
    num_modules = len(layers)  # a weight and a bias for each layer, which is followed by its activation
    for part in ("weight", "bias"):
        layers[f"{num_modules}.{part}"] = model[_OUTPUT + part]
    if _NORMALISER + "running_mean" not in model:
        return Weights(layers=layers)
    return Weights(
        layers=layers,
        mean=model[_NORMALISER + "running_mean"].float(),
        scale=(model[_NORMALISER + "running_var"].float() + 1e-5).sqrt(),
        clip=5.0,
    )
