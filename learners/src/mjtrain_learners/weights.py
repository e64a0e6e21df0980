"""What was learned: out of the checkpoints of each library, into all ranks, and as a policy without the library."""

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from mjtrain.learning import AgentConfig, CheckpointError, Collectives, Policy, RequestError, find_other_moment
from mjtrain_learners.mlp_library import make_activation, make_layers

_PARTS = {"kernel": "weight", "bias": "bias"}
_LAYERS, _OUTPUT, _NORMALISER = "a2c_network.actor_mlp.", "a2c_network.mu.", "running_mean_std."


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What an actor has learned."""

    layers: Mapping[str, torch.Tensor]
    """Weights of `mlp_library.make_layers` by name."""

    mean: torch.Tensor | None = None
    """What is subtracted from observations; None without a normaliser. Shape (size,)."""

    scale: torch.Tensor | None = None
    """What they are divided by then. Shape (size,)."""

    clip: float = float("inf")
    """Bound of their absolute value then."""


def read_skrl(content: Mapping[str, Any]) -> Weights:
    """Return the weights of the policy; raises a KeyError if there are none."""
    layers = {
        name.removeprefix("layers."): value for name, value in content["policy"].items() if name.startswith("layers.")
    }
    return _with_scaler(layers, content)


def _with_scaler(layers: Mapping[str, torch.Tensor], content: Mapping[str, Any]) -> Weights:
    """Add skrl's normaliser of observations, if a checkpoint has one."""
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


def read_skrl_jax(content: Mapping[str, Any]) -> Weights:
    """Return the weights of the policy as `make_layers` names them; raises a KeyError if there are none.

    Flax numbers the linear layers, and torch the layers and the activations between them. A kernel of Flax is the
    transpose of a weight of torch.
    """
    layers = {}
    for name, value in content["policy"].items():
        _, *layer, part = name.split(".")
        if layer:
            number = 2 * int(layer[0].removeprefix("Dense_"))
            layers[f"{number}.{_PARTS[part]}"] = value.T if part == "kernel" else value
    return _with_scaler(layers, content)


def read_rl_games(content: Mapping[str, Any]) -> Weights:
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


READERS = {"skrl": read_skrl, "skrl_jax": read_skrl_jax, "rl_games": read_rl_games}
"""What finds the policy's weights in a checkpoint, without the library, by `MlpLibrary.format`."""


@torch.no_grad()
def broadcast_modules(modules: Mapping[str, nn.Module], collectives: Collectives) -> None:
    """Give all ranks the parameters and buffers of rank 0; every rank must call it."""
    with collectives.waiting():
        for module in modules.values():
            for tensor in module.state_dict().values():
                dist.broadcast(tensor, 0)


def load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], *, keeps_rate: bool) -> None:
    """Take the state of a checkpoint's optimiser, but not its settings, and with keeps_rate not its step size.

    Raises:
        ValueError: It does not fit the parameters; the message names an entry.
    """
    if (other := find_other_moment(optimizer, state)) is not None:
        raise ValueError(other)
    left = {"params"} if keeps_rate else {"params", "lr"}
    settings = [{name: group[name] for name in group.keys() - left} for group in optimizer.param_groups]
    optimizer.load_state_dict({**state})
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)


def load_modules(modules: Mapping[str, nn.Module], content: Mapping[str, Any], path: Path) -> None:
    """Take parameters and buffers from a checkpoint, by names of modules; nothing changes if they do not fit."""
    check_normalisers(modules, content, path)
    for part, module in modules.items():
        check_shapes(module.state_dict(), content, part, path)
    for part, module in modules.items():
        module.load_state_dict(content[part])


def check_normalisers(ours: Collection[str], content: Mapping[str, Any], path: Path) -> None:
    """Refuse a checkpoint of skrl with a normaliser that this run lacks: its networks expect normalised inputs."""
    for part in ("observation_preprocessor", "state_preprocessor", "value_preprocessor"):
        if part in content and part not in ours:
            raise RequestError(f"checkpoint {path}: has the part {part}, which this run does not have")


def check_shapes(ours: Mapping[str, Any], content: Mapping[str, Any], part: str, path: Path) -> None:
    """Refuse a part of a checkpoint whose arrays have other names or shapes than this run's."""
    if part not in content:
        raise RequestError(f"checkpoint {path}: has no {part}, which this run has")
    if not isinstance(content[part], Mapping):
        kind = type(content[part]).__name__
        raise RequestError(f"checkpoint {path}: is damaged: {part} is of type {kind}, not arrays by name")
    for name, value in content[part].items():
        if not hasattr(value, "shape"):
            raise RequestError(
                f"checkpoint {path}: is damaged: {part} {name} is of type {type(value).__name__}, not an array"
            )
    for name in [*ours, *content[part]]:
        theirs, here = (tuple(side[name].shape) if name in side else None for side in (content[part], ours))
        if theirs != here:
            raise RequestError(
                f"checkpoint {path}: does not fit the networks of this run: {part} {name} has shape {theirs} in the "
                f"checkpoint and {here} here"
            )


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
        """Take the weights of a checkpoint; nothing changes if they do not fit."""
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
