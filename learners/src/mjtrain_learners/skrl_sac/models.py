"""skrl's models for SAC, with layers as the agent's config has them."""

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium.spaces import Box
from skrl.models.torch import DeterministicMixin

from mjtrain.learning import Collectives, ModelConfig
from mjtrain_learners.mlp import make_layers
from mjtrain_learners.skrl_on_torch.models import Actor, JobModel


class BoundedActor(Actor):
    """The policy: means between -1 and 1, and one standard deviation for all states."""

    def compute(
        self,
        inputs: dict[str, Any],
        role: str = "",
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the means, shape (num_samples, num_actions), and the logarithm of the standard deviation."""
        means, outputs = super().compute(inputs, role)
        return means.tanh(), outputs


class ActionCritic(DeterministicMixin, JobModel):
    """The value of an action where the environment is in a state, by what skrl calls states."""

    def __init__(self, spaces: Mapping[str, Box], device: str, config: ModelConfig, collectives: Collectives) -> None:
        """Build the layers.

        Args:
            spaces: skrl's observation_space, state_space and action_space.
            device: Torch device.
            config: Layers.
            collectives: Of the job.
        """
        JobModel.__init__(self, **spaces, device=device)
        DeterministicMixin.__init__(self)
        self.collectives = collectives
        size = spaces["state_space"].shape[0] + spaces["action_space"].shape[0]
        self.layers = make_layers(size, config.hidden_dims, 1, config.activation)

    def compute(  # pyright: ignore[reportIncompatibleMethodOverride]  # skrl gives the role by its place
        self,
        inputs: dict[str, Any],
        role: str = "",  # noqa: ARG002
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the values, shape (num_samples, 1)."""
        return self.layers(torch.cat([inputs["states"], inputs["taken_actions"]], dim=1)), {}
