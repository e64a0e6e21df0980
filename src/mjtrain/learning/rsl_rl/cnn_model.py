"""RSL-RL's CNN model for images as the environment gives them, and the supervision of its convolutions."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rsl_rl.models import CNNModel, MLPModel
from rsl_rl.modules import CNN, MLP, EmpiricalNormalization
from rsl_rl.utils import unpad_trajectories
from tensordict import TensorDict
from torch import nn


class AuxiliaryHead(nn.Module):
    """Predicts a flat observation group, normalised by its running mean and deviation, from encoded images.

    It is a part of the actor, so the optimiser, gradients over ranks, checkpoints and the drift check have it. What
    only acts, where the group is not known, does not need it.
    """

    def __init__(
        self, latent_dim: int, obs: TensorDict, group: str, hidden_dims: tuple[int, ...], activation: str
    ) -> None:
        super().__init__()
        self.group = group
        """Flat observation group that it predicts."""
        size = obs[group].shape[-1]
        self.mlp = MLP(latent_dim, size, hidden_dims, activation)
        self.obs_normalizer = EmpiricalNormalization(size)

    def loss(self, latent: torch.Tensor, obs: TensorDict) -> torch.Tensor:
        """Return the mean squared error of the prediction, in variances of the group; latents: (batch, latent_dim)."""
        return nn.functional.mse_loss(self.mlp(latent), self.obs_normalizer(obs[self.group]))

    def estimate(self, latent: torch.Tensor) -> torch.Tensor:
        """Return the prediction in the units of the group, shape (batch, size), for latents (batch, latent_dim)."""
        return self.obs_normalizer.inverse(self.mlp(latent))

    def update_normalization(self, obs: TensorDict) -> None:
        """Take in observations of a rollout."""
        self.obs_normalizer.update(obs[self.group])  # pyright: ignore[reportCallIssue]


class AuxiliaryLoss:
    """Adds the head's loss to PPO's, in the place where RSL-RL's update adds the mirror loss of a symmetry."""

    use_mirror_loss = True

    def __init__(self, coef: float) -> None:
        self.mirror_loss_coeff = coef

    def augment_batch(self, batch: Any, original_batch_size: int) -> None:
        """Leave the mini-batch as it is."""

    def compute_loss(self, actor: Any, batch: Any, original_batch_size: int) -> torch.Tensor:  # noqa: ARG002
        """Return the loss for the mini-batch that the actor has just encoded.

        Beside a recurrent critic a mini-batch has trajectories of episodes, padded to one length. The actor, which is
        not recurrent, has encoded the env steps without the padding.
        """
        observations = batch.observations
        if batch.masks is not None:
            observations = unpad_trajectories(observations, batch.masks)
        return actor.auxiliary_head.loss(actor.image_latent, observations)


def without_head(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return an actor's weights without those that only its training needs; what is not weights, as it is."""
    if not isinstance(weights, Mapping):  # of a damaged file, which their comparison with a network says
        return weights
    return {name: value for name, value in weights.items() if not str(name).startswith("auxiliary_head.")}


def with_head_of(actor: nn.Module, weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return weights of another training with the head that this actor has: theirs if it fits, else its current one."""
    if not isinstance(weights, Mapping):
        return weights
    ours = actor.state_dict()
    head = ours.keys() - without_head(ours)
    fits = all(getattr(weights.get(name), "shape", None) == ours[name].shape for name in head)
    return without_head(weights) | {name: (weights if fits else ours)[name] for name in head}


class ImageEncoder(CNN):
    """RSL-RL's convolutions for images in bytes, which stand for value / 255, or in floating point as they are."""

    def __init__(self, *args: Any, input_norm: str = "none", **kwargs: Any) -> None:
        """Build the layers; `input_norm` as in `config.CnnConfig`, the others as of RSL-RL's."""
        pools_here = kwargs.get("global_pool") == "spatial_softmax"
        super().__init__(*args, **kwargs | ({"global_pool": "none", "flatten": False} if pools_here else {}))
        if pools_here:
            channels, size = self.output_channels, self.output_dim
            assert channels is not None
            assert isinstance(size, tuple)
            self.add_module(str(len(self)), SpatialSoftmax(*size))
            self._output_dim = 2 * channels
        self._normalises_input = input_norm == "instance"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Encode images of shape (batch, channels, height, width); returns shape (batch, output_dim)."""
        if self.training and torch.is_grad_enabled() and x.is_cpu:  # a backward pass is a quarter faster so
            x = x.contiguous(memory_format=torch.channels_last)
        is_copy = x.dtype == torch.uint8
        if is_copy:
            x = x.to(self[0].weight.dtype).div_(255.0)  # pyright: ignore[reportCallIssue, reportArgumentType]
        if self._normalises_input:
            x = _normalise(x, in_place=is_copy)
        for layer in self:
            x = layer(x)
        return x


class SpatialSoftmax(nn.Module):
    """Turns each channel of an image into the mean place of its activation."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        rows, columns = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
        self.places: torch.Tensor
        self.register_buffer("places", torch.stack((columns.flatten(), rows.flatten()), dim=1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return places (x, y), shape (batch, 2 * channels), of images of shape (batch, channels, height, width)."""
        return (x.flatten(2).softmax(dim=2) @ self.places).flatten(1)


def _normalise(images: torch.Tensor, in_place: bool) -> torch.Tensor:
    """Normalise each channel of each image, as torch's instance_norm does; on a CPU, in a third of its time."""
    if torch.compiler.is_exporting():  # runtimes add pixel after pixel: sums of rows first round ten times less
        images = images - images.mean(-1, keepdim=True).mean(-2, keepdim=True)
        return images * torch.rsqrt(images.square().mean(-1, keepdim=True).mean(-2, keepdim=True) + 1e-5)
    mean = images.mean((-2, -1), keepdim=True)
    images = images.sub_(mean) if in_place else images - mean
    length = torch.linalg.vector_norm(images, dim=(-2, -1), keepdim=True)
    num_pixels = images.shape[-2] * images.shape[-1]
    return images.mul_(torch.rsqrt(length.square() / num_pixels + 1e-5))


class CnnModel(CNNModel):
    """RSL-RL's `CNNModel`: image groups through convolutions, and beside them flat groups, into an MLP.

    It differs from RSL-RL's in four things. Images stay bytes until they reach the convolutions, so a rollout holds a
    quarter of the memory. An actor may read images only; then there is nothing to normalise. Beside a recurrent model,
    whose mini-batches have an axis of time, it encodes all steps at once. And encoders that it gets from another model
    are borrowed: they stay parameters of that model alone, so that an optimiser, a checkpoint or a sum of gradients
    over both models has them once.
    """

    def __init__(
        self,
        obs: TensorDict,
        obs_groups: dict[str, list[str]],
        obs_set: str,
        output_dim: int,
        hidden_dims: Sequence[int] = (256, 256, 256),
        activation: str = "elu",
        obs_normalization: bool = False,
        distribution_cfg: dict[str, Any] | None = None,
        cnn_cfg: Mapping[str, Any] | None = None,
        cnns: nn.ModuleDict | None = None,
        auxiliary_cfg: Mapping[str, Any] | None = None,
    ) -> None:
        """Build the network; parameters as of RSL-RL's.

        Args:
            obs: Observations by group. Shape (num_envs, channels, height, width) of an image group, else
                (num_envs, size).
            cnn_cfg: Convolutions of each image group, as in `config.CnnConfig`.
            cnns: Encoders by image group to borrow from another model, in place of cnn_cfg.
            auxiliary_cfg: A group to predict from the encoded images, as in `config.AuxiliaryConfig`.

        Raises:
            ValueError: No image group is given, or the other model reads other image groups.
        """
        flat_groups, _ = self._get_obs_dim(obs, obs_groups, obs_set)
        if cnns is not None and set(cnns) != set(self.obs_groups_2d):
            raise ValueError(f"the encoders are of {', '.join(cnns)}, and this model reads {self.obs_groups_2d}")
        shapes = zip(self.obs_groups_2d, self.obs_dims_2d, self.obs_channels_2d, strict=True)
        encoders = cnns or nn.ModuleDict(
            {group: ImageEncoder(tuple(size), channels, **(cnn_cfg or {})) for group, size, channels in shapes}
        )
        self.cnn_latent_dim = sum(int(encoder.output_dim) for encoder in encoders.values())  # pyright: ignore[reportArgumentType]
        super(CNNModel, self).__init__(
            obs,
            obs_groups,
            obs_set,
            output_dim,
            list(hidden_dims),
            activation,
            obs_normalization and bool(flat_groups),
            distribution_cfg,
        )
        if cnns is None:
            self.cnns = encoders
        else:
            self.__dict__["cnns"] = cnns  # not registered as a part of this model
        self.auxiliary_head: AuxiliaryHead | None = None
        self._detaches_encoder = auxiliary_cfg is not None and auxiliary_cfg["detach_encoder"]
        if auxiliary_cfg is not None:
            group, widths = auxiliary_cfg["group"], tuple(auxiliary_cfg["hidden_dims"])
            self.auxiliary_head = AuxiliaryHead(self.cnn_latent_dim, obs, group, widths, activation)
        self.image_latent = torch.zeros(0)
        """Images as they were last encoded, for the head; shape (batch, cnn_latent_dim)."""

    def get_latent(self, obs: TensorDict, masks: torch.Tensor | None = None, hidden_state: Any = None) -> torch.Tensor:
        """Put normalised flat groups and encoded image groups side by side. Shape (..., size)."""
        encoded = torch.cat([self._encode(group, obs[group]) for group in self.obs_groups_2d], dim=-1)
        if self.auxiliary_head is not None:
            self.image_latent = encoded
        if self._detaches_encoder:
            encoded = encoded.detach()
        if not self.obs_groups:
            return encoded
        return torch.cat([MLPModel.get_latent(self, obs, masks, hidden_state), encoded], dim=-1)

    def update_normalization(self, obs: TensorDict) -> None:
        """Take in observations of a rollout."""
        super().update_normalization(obs)
        if self.auxiliary_head is not None:
            self.auxiliary_head.update_normalization(obs)

    def _encode(self, group: str, images: torch.Tensor) -> torch.Tensor:
        if images.ndim == 4:
            return self.cnns[group](images)
        return self.cnns[group](images.flatten(0, -4)).unflatten(0, images.shape[:-3])
