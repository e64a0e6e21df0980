"""A trained MLP, for use without the library that trained it."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mjtrain.learning import AgentConfig, CheckpointError, Policy, RequestError
from mjtrain_learners.mlp_library import make_activation, make_layers
from mjtrain_learners.weights import Weights, check_shapes


class MlpPolicy(Policy):
    """`learner.Policy` with layers of torch: the mean action, no exploration noise, the normaliser inside."""

    def __init__(
        self,
        agent: AgentConfig,
        observations: Mapping[str, torch.Tensor],
        num_actions: int,
        read: Callable[[Mapping[str, Any]], Weights],
        output_activation: str = "identity",
    ) -> None:
        """Build the network.

        Args:
            observations: What the environment observes, by group; shape (num_envs, size) each.
            read: Finds the weights in a checkpoint; raises a KeyError if they are not there.
            output_activation: What the last layer's outputs go through.
        """
        if "actor" not in agent.obs_groups:
            raise RequestError("--agent.obs-groups.actor: is missing; name the groups that this network reads")
        groups = agent.obs_groups["actor"]
        self.estimated_group = None
        self.inputs = {group: tuple(observations[group].shape[1:]) for group in groups}
        self.dtypes = {group: observations[group].dtype for group in groups}
        self.iteration = 0
        size = sum(shape[0] for shape in self.inputs.values())
        layers = make_layers(size, agent.actor.hidden_dims, num_actions, agent.actor.activation)
        self._network = (
            _Actor(layers, size, make_activation(output_activation)).to(observations[groups[0]].device).eval()
        )
        self._read = read

    def load(self, content: dict[str, Any], path: Path) -> None:
        """Take the weights of a checkpoint; nothing changes if they do not fit.

        Raises:
            CheckpointError: It has no actor, or one of other sizes.
        """
        try:
            weights = self._read(content)
        except KeyError as error:
            raise CheckpointError(
                f"checkpoint {path}: has no {error.args[0]}; it is not a checkpoint of a training"
            ) from error
        try:
            check_shapes(self._network.layers.state_dict(), {"actor": weights.layers}, "actor", path)
        except RequestError as error:
            raise CheckpointError(str(error)) from error
        self._network.layers.load_state_dict(dict(weights.layers))
        self._network.set_normaliser(weights)
        self.iteration = content.get("iter", 0)

    @torch.inference_mode()
    def __call__(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean actions, shape (num_envs, num_actions), for observations by group, (num_envs, size)."""
        return self._network(torch.cat([observations[group] for group in self.inputs], dim=1))

    def to_onnx_module(self) -> nn.Module:
        """Return a module for torch.onnx.export; see `learner.Policy`."""
        return copy.deepcopy(self._network).cpu().eval()


class _Actor(nn.Module):
    """A normaliser, which may do nothing, layers, and what their outputs go through."""

    def __init__(self, layers: nn.Sequential, size: int, bound: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.bound = bound
        self.mean = nn.Buffer(torch.zeros(size))
        self.scale = nn.Buffer(torch.ones(size))
        self.clip = float("inf")

    def set_normaliser(self, weights: Weights) -> None:
        """Take what observations are shifted and scaled by."""
        if weights.mean is not None and weights.scale is not None:
            self.mean.copy_(weights.mean)
            self.scale.copy_(weights.scale)
            self.clip = weights.clip

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the mean actions, shape (batch, num_actions)."""
        normalised = (observations - self.mean) / self.scale
        return self.bound(self.layers(torch.clamp(normalised, min=-self.clip, max=self.clip)))
