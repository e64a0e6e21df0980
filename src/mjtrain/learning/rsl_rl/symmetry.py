"""Learning from mirror images, in the place where RSL-RL's update asks for a symmetry."""

from collections.abc import Iterable
from typing import Any

import torch
from rsl_rl.extensions import Symmetry
from tensordict import TensorDict

from mjtrain.env.mirror import Mirror


class MirrorImages:
    """Appends to a batch its mirror image: what RSL-RL calls a data augmentation function."""

    def __init__(self, mirror: Mirror, groups: Iterable[str], device: torch.device | str) -> None:
        self.matrices = {group: mirror.observations(group).to(device) for group in sorted(groups)}
        """Of each observation group as a column vector. Shape (size, size), float64."""
        self.action_matrix = mirror.actions().to(device)
        """Of an action as a column vector. Shape (num_actions, num_actions), float64."""

    def __call__(
        self,
        env: Any,  # noqa: ARG002
        obs: TensorDict | None,
        actions: torch.Tensor | None,
    ) -> tuple[TensorDict | None, torch.Tensor | None]:
        """Return observations and actions, (batch, size) each, followed by their mirror images; None stays None."""
        if obs is not None:
            both: Any = [obs.select(*self.matrices), self.mirror_observations(obs)]
            obs = TensorDict.cat(both)
        if actions is not None:
            actions = torch.cat([actions, self.mirror_actions(actions)])
        return obs, actions

    def mirror_observations(self, obs: TensorDict) -> TensorDict:
        """Return the mirror images of observations alone."""
        images = {group: obs[group] @ matrix.T.to(obs[group].dtype) for group, matrix in self.matrices.items()}
        return TensorDict(images, batch_size=obs.batch_size, device=obs.device)  # pyright: ignore[reportArgumentType]

    def mirror_actions(self, actions: torch.Tensor) -> torch.Tensor:
        """Return the mirror images of actions alone. Shape (batch, num_actions)."""
        return actions @ self.action_matrix.T.to(actions.dtype)


class MirrorSymmetry(Symmetry):
    """RSL-RL's symmetry, with a loss that asks the actor for nothing that it has computed already."""

    data_augmentation_func: MirrorImages

    def compute_loss(self, actor: Any, batch: Any, original_batch_size: int) -> torch.Tensor:
        """Return the mean squared difference of the action means for mirrored observations and the mirrored means.

        The actor has just been asked for the distributions of the batch, mirror images included where they are learned
        from. Only a mirror loss by itself asks it again, for the mirror images.
        """
        means = actor.output_mean
        if self.use_data_augmentation:
            for_images = means[original_batch_size:]
        else:
            for_images = actor(self.data_augmentation_func.mirror_observations(batch.observations))
        images = self.data_augmentation_func.mirror_actions(means[:original_batch_size].detach())
        loss = torch.nn.functional.mse_loss(for_images, images)
        return loss if self.use_mirror_loss else loss.detach()
