"""A trained actor, for use without training."""

import copy
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from rsl_rl.models import MLPModel
from rsl_rl.utils import resolve_class

from mjtrain.config import AgentConfig, ImitationConfig, merge_settings, to_plain
from mjtrain.learning.persistence import find_other_shape
from mjtrain.learning.rsl_rl.cnn_model import CnnModel, without_head
from mjtrain.learning.rsl_rl.networks import pack, resolve_model
from mjtrain.runs.checkpoint import CheckpointError
from mjtrain.runtime.errors import RequestError, count


class ActorPolicy:
    """`learner.Policy` with RSL-RL's actor: the mean action, no exploration noise, the normaliser inside."""

    def __init__(
        self,
        config: AgentConfig,
        observations: dict[str, torch.Tensor],
        num_actions: int,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Build the network.

        Args:
            observations: What the environment observes, by group; shape (num_envs, size) each, or (num_envs, channels,
                height, width) for images.
        """
        unnamed = ("actor",) if "actor" in observations else ("policy",)  # what RSL-RL takes in a training
        groups = config.obs_groups.get("actor", unnamed)
        plain = to_plain(config)
        own = settings.get("student" if isinstance(config.algorithm, ImitationConfig) else "actor", {})
        make_actor, options = resolve_class(merge_settings(resolve_model(plain["actor"]), own))
        supervised = config.supervised_group
        self.estimated_group = supervised if supervised in observations else None
        if self.estimated_group is not None:
            options["auxiliary_cfg"] = plain["algorithm"]["auxiliary_cfg"]
        seen = pack(observations)
        sets = {**plain["obs_groups"], "actor": list(groups)}  # all, as in a training: other classes may read them
        self.network: MLPModel = make_actor(seen, sets, "actor", num_actions, **options).to(seen.device)
        self.network.eval()
        self.inputs = {group: tuple(observations[group].shape[1:]) for group in groups}
        self.dtypes = {group: observations[group].dtype for group in groups}
        self.iteration = 0

    def load(self, content: dict[str, Any], path: Path) -> None:
        """Take the weights of a checkpoint; see `learner.Policy.load`."""
        weights = content.get("actor_state_dict")
        if weights is None:
            raise CheckpointError(f"checkpoint {path}: has no actor; it is not a checkpoint of a training")
        if self.estimated_group is None:
            weights = without_head(weights)
        other = find_other_shape(self.network.state_dict(), weights)
        if other is not None:
            raise CheckpointError(f"checkpoint {path}: does not fit the networks of this run: actor {other}")
        self.network.load_state_dict(weights)
        self.iteration = content.get("iter", 0)

    @torch.inference_mode()
    def __call__(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean actions, shape (num_envs, num_actions), for observations by group, (num_envs, *shape)."""
        seen = pack(observations)
        memory: Any = self.network.get_hidden_state()
        remembered = memory[0] if isinstance(memory, tuple) else memory
        if remembered is not None and remembered.shape[1] != len(seen):
            raise RequestError(
                f"observations are of {count(len(seen), 'environment')}, and the policy remembers those of "
                f"{remembered.shape[1]}; call its reset() first"
            )
        return self.network(seen)

    @torch.inference_mode()
    def estimate(self) -> torch.Tensor:
        """Return what the images of the last call tell of `estimated_group`, shape (num_envs, size)."""
        network: Any = self.network
        if network.image_latent.ndim == 1:
            raise RequestError("the policy estimates from the images of its last call; call it with observations first")
        return network.auxiliary_head.estimate(network.image_latent)

    @torch.inference_mode()  # in which the memory was made
    def reset(self, done: torch.Tensor | None) -> None:
        """Reset the memory of the masked worlds, or of all, for networks that have one. Boolean, shape (num_envs,)."""
        self.network.reset(done)

    def to_onnx_module(self) -> torch.nn.Module:
        """Return a module for torch.onnx.export; see `learner.Policy`."""
        module = self._with_images() or self.network.as_onnx(verbose=False)
        return module.cpu().eval()

    def to_script_module(self) -> torch.nn.Module:
        """Return a module for torch.jit; see `learner.Policy`."""
        module = self._with_images() or self.network.as_jit()
        return module.cpu().eval()

    def _with_images(self) -> "_Positional | None":
        """Return the network to export if it reads images, else None; refuse one that has a memory."""
        if self.network.is_recurrent:
            kind = type(self.network).__name__
            raise RequestError(f"export: writes networks without memory, such as MLPModel, and this policy is a {kind}")
        sees = any(len(shape) > 1 for shape in self.inputs.values())
        return _Positional(self.network, self.inputs) if sees else None


class _Positional(torch.nn.Module):
    """A network with its observations as positional inputs: the flat groups side by side, if any, and each image."""

    def __init__(self, network: MLPModel, inputs: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        if isinstance(self.network, CnnModel):
            self.network.auxiliary_head = None  # what acts does not need it
        self._flat = {group: shape[0] for group, shape in inputs.items() if len(shape) == 1}
        self._images = [group for group, shape in inputs.items() if len(shape) > 1]

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the mean actions, shape (batch, num_actions)."""
        flat = inputs[0].split(list(self._flat.values()), dim=1) if self._flat else ()
        images = inputs[1:] if self._flat else inputs
        observations = dict(zip([*self._flat, *self._images], [*flat, *images], strict=True))
        return self.network(observations)
