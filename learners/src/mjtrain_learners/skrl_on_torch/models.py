"""skrl's models, with layers as the agent's config has them."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from gymnasium.spaces import Box
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from torch import nn

from mjtrain.learning import Collectives, ModelConfig
from mjtrain_learners.mlp import make_layers


class JobModel(Model):
    """A model whose collectives count as waiting for the other ranks."""

    collectives: Collectives

    def broadcast_parameters(self, *, rank: int = 0) -> None:
        """Give all ranks the parameters of one; skrl pickles them, with the name of that rank's device."""
        with self.collectives.waiting():
            for tensor in self.state_dict().values():
                dist.broadcast(tensor, rank)

    def reduce_parameters(self) -> None:
        """Average the gradients over ranks as skrl does."""
        with self.collectives.waiting():
            super().reduce_parameters()


class Actor(GaussianMixin, JobModel):
    """The policy: means from layers, and one standard deviation for all states."""

    def __init__(
        self, spaces: Mapping[str, Box], device: str, config: ModelConfig, collectives: Collectives, **options: Any
    ) -> None:
        """Build the layers.

        Args:
            spaces: skrl's observation_space, state_space and action_space.
            device: Torch device.
            config: Layers and distribution.
            collectives: Of the job.
            **options: See skrl's GaussianMixin.
        """
        JobModel.__init__(self, **spaces, device=device)
        GaussianMixin.__init__(self, **options)
        assert config.distribution_cfg is not None
        num_actions = spaces["action_space"].shape[0]
        self.collectives = collectives
        self.layers = make_layers(
            spaces["observation_space"].shape[0], config.hidden_dims, num_actions, config.activation
        )
        self._learns_log = config.distribution_cfg.std_type == "log"
        std = torch.full((num_actions,), config.distribution_cfg.init_std)
        self.std = nn.Parameter(std.log() if self._learns_log else std)

    def compute(  # pyright: ignore[reportIncompatibleMethodOverride]  # skrl gives the role by its place
        self,
        inputs: dict[str, Any],
        role: str = "",  # noqa: ARG002
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the means, shape (num_samples, num_actions), and the logarithm of the standard deviation."""
        log_std = self.std if self._learns_log else self.std.clamp(min=1e-6).log()
        return self.layers(inputs["observations"]), {"log_std": log_std}


class Critic(DeterministicMixin, JobModel):
    """The value function, which reads what skrl calls states."""

    def __init__(self, spaces: Mapping[str, Box], device: str, config: ModelConfig, collectives: Collectives) -> None:
        """Build the layers; arguments as of `Actor`."""
        JobModel.__init__(self, **spaces, device=device)
        DeterministicMixin.__init__(self)
        self.collectives = collectives
        self.layers = make_layers(spaces["state_space"].shape[0], config.hidden_dims, 1, config.activation)

    def compute(  # pyright: ignore[reportIncompatibleMethodOverride]  # skrl gives the role by its place
        self,
        inputs: dict[str, Any],
        role: str = "",  # noqa: ARG002
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the values, shape (num_samples, 1)."""
        return self.layers(inputs["states"]), {}
