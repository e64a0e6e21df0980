"""What skrl's agents on PyTorch share: models, normalisers, and how the training loop calls them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gymnasium.spaces import Box
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.resources.preprocessors.torch import RunningStandardScaler
from torch import nn

from mjtrain.learning import Algorithm, Collectives, ModelConfig, Observations
from mjtrain_learners.inputs import Inputs
from mjtrain_learners.mlp_library import make_layers
from mjtrain_learners.skrl_settings import NOW, describe_scaler
from mjtrain_learners.weights import broadcast_modules, load_modules


class JobScaler(RunningStandardScaler):
    """skrl's running mean and variance, updated with the moments of all ranks' samples; skrl keeps one per rank.

    With one rank it is skrl's.
    """

    def __init__(self, size: int, *, collectives: Collectives, **options: Any) -> None:
        """Take what skrl's takes, and what adds up over ranks."""
        super().__init__(size, **options)
        self._collectives = collectives

    def _parallel_variance(self, input_mean: torch.Tensor, input_var: torch.Tensor, input_count: int) -> None:
        """Take in the moments of this rank's samples, with the unbiased variance; every rank must call it."""
        if not dist.is_initialized():
            super()._parallel_variance(input_mean, input_var, input_count)
            return
        deviation = input_mean.double() - self.running_mean  # from what all ranks share, so that no digits are lost
        squares = deviation.square() * input_count
        if input_count > 1:  # the variance of one sample is NaN
            squares += input_var.double() * (input_count - 1)
        sums = torch.cat([deviation * input_count, squares, deviation.new_tensor([float(input_count)])])
        self._collectives.sum(sums)
        size, count = deviation.shape[0], int(sums[-1])
        mean = sums[:size] / count
        variance = (sums[size:-1] - count * mean.square()).clamp(min=0.0) / (count - 1)
        super()._parallel_variance(self.running_mean + mean, variance, count)


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
        """Build the layers; spaces as of `Inputs.make_spaces`, options as of skrl's GaussianMixin."""
        JobModel.__init__(self, **spaces, device=device)
        GaussianMixin.__init__(self, **options)
        assert config.distribution_cfg is not None
        num_actions = spaces["action_space"].shape[0]
        self.collectives = collectives
        self.layers = make_layers(
            spaces["observation_space"].shape[0], config.hidden_dims, num_actions, config.activation
        )
        self.std_type = config.distribution_cfg.std_type
        std = torch.full((num_actions,), config.distribution_cfg.init_std)
        self.std = nn.Parameter(std.log() if self.std_type == "log" else std)

    def compute(  # pyright: ignore[reportIncompatibleMethodOverride]  # skrl gives the role by its place
        self,
        inputs: dict[str, Any],
        role: str = "",  # noqa: ARG002
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the means, shape (num_samples, num_actions), and the logarithm of the standard deviation."""
        log_std = self.std if self.std_type == "log" else self.std.clamp(min=1e-6).log()
        return self.layers(inputs["observations"]), {"log_std": log_std}


class Critic(DeterministicMixin, JobModel):
    """The value function, which reads what skrl calls states."""

    reads: tuple[str, ...] = ("state_space",)
    """Which of the spaces the layers read, side by side."""

    def __init__(self, spaces: Mapping[str, Box], device: str, config: ModelConfig, collectives: Collectives) -> None:
        """Build the layers; arguments as of `Actor`."""
        JobModel.__init__(self, **spaces, device=device)
        DeterministicMixin.__init__(self)
        self.collectives = collectives
        size = sum(spaces[name].shape[0] for name in self.reads)
        self.layers = make_layers(size, config.hidden_dims, 1, config.activation)

    def compute(  # pyright: ignore[reportIncompatibleMethodOverride]  # skrl gives the role by its place
        self,
        inputs: dict[str, Any],
        role: str = "",  # noqa: ARG002
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the values, shape (num_samples, 1)."""
        return self.layers(inputs["states"]), {}


class SkrlBase(Algorithm):
    """The part of a `learning.algorithm.Algorithm` that all of skrl's agents share."""

    learned: tuple[str, ...]
    """skrl's names of the models and normalisers that are learned."""

    def __init__(self, agent: Any, collectives: Collectives, inputs: Inputs) -> None:
        """Take an agent, before its `init`."""
        self.collectives = collectives
        self._agent = agent
        self._inputs = inputs
        self._seen: tuple[torch.Tensor, torch.Tensor] | None = None
        self._actions: torch.Tensor | None = None
        agent.init()
        agent.enable_training_mode(True)

    def broadcast(self) -> None:
        """Give all ranks the models and normalisers of rank 0."""
        broadcast_modules(self._learned(), self.collectives)

    def _learned(self) -> dict[str, torch.nn.Module]:
        return {name: module for name, module in self._agent.checkpoint_modules.items() if name in self.learned}

    def act(self, observations: Observations) -> torch.Tensor:
        """Sample actions; see `Algorithm`."""
        self._seen = self._inputs.split(observations)
        self._actions, _ = self._agent.act(*self._seen, **NOW)
        assert self._actions is not None
        return self._actions

    def _modules_state(self) -> dict[str, Any]:
        """Return models, normalisers, what a policy needs to know of them, and the scale of mixed precision."""
        state: dict[str, Any] = {name: module.state_dict() for name, module in self._learned().items()}
        return state | {"scaler": self._agent.scaler.state_dict(), **describe_scaler(self._agent)}

    def load_weights(self, content: dict[str, Any], path: Path) -> None:
        """Take the models and normalisers of a checkpoint; nothing changes if they do not fit."""
        load_modules(self._learned(), content, path)
