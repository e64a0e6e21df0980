"""Supervision of an actor's convolutions: a head predicts from them what the worlds are really like."""

from collections.abc import Mapping
from typing import Any

import torch
from rsl_rl.modules import MLP, EmpiricalNormalization
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
