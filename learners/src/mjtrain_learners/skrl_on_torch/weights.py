"""What a checkpoint of a training with skrl holds of the policy."""

from collections.abc import Mapping
from typing import Any

from mjtrain_learners.policy import Weights


def read_weights(content: Mapping[str, Any]) -> Weights:
    """Return the weights of the policy; raises a KeyError if there are none."""
    layers = {
        name.removeprefix("layers."): value for name, value in content["policy"].items() if name.startswith("layers.")
    }
    scaler = content.get("observation_preprocessor")
    if scaler is None:
        return Weights(layers=layers)
    options = content["observation_preprocessor_options"]
    return Weights(
        layers=layers,
        mean=scaler["running_mean"].float(),
        scale=scaler["running_variance"].float().sqrt() + options["epsilon"],
        clip=options["clip_threshold"],
    )
