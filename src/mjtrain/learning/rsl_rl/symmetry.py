"""Left and right: learning from mirror images, and networks that are symmetric by construction."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from rsl_rl.extensions import Symmetry
from rsl_rl.models import MLPModel
from tensordict import TensorDict
from torch import nn

from mjtrain.env.mirror import Mirror


class MirrorImages:
    """Appends to a batch its mirror image: what RSL-RL calls a data augmentation function."""

    def __init__(
        self, mirror: Mirror, groups: Iterable[str], device: torch.device | str, others: Iterable[str] = ()
    ) -> None:
        """Take the observation groups to mirror, and others that stay in a batch as they are."""
        self.matrices = {group: mirror.observations(group).to(device) for group in sorted(groups)}
        """Of each observation group as a column vector. Shape (size, size), float64."""
        self.action_matrix = mirror.actions().to(device)
        """Of an action as a column vector. Shape (num_actions, num_actions), float64."""
        self._others = sorted(set(others) - self.matrices.keys())

    def __call__(
        self,
        env: Any,  # noqa: ARG002
        obs: TensorDict | None,
        actions: torch.Tensor | None,
    ) -> tuple[TensorDict | None, torch.Tensor | None]:
        """Return observations and actions, (batch, size) each, followed by their mirror images; None stays None."""
        if obs is not None:
            images = self.mirror_observations(obs).update(obs.select(*self._others))
            both: Any = [obs.select(*self.matrices, *self._others), images]
            obs = TensorDict.cat(both)
        if actions is not None:
            actions = torch.cat([actions, self.mirror_actions(actions)])
        return obs, actions

    def mirror_observations(self, obs: TensorDict) -> TensorDict:
        """Return the mirror images of observations alone."""
        images = {group: _reflect(obs[group], matrix) for group, matrix in self.matrices.items()}
        return TensorDict(images, batch_size=obs.batch_size, device=obs.device)  # pyright: ignore[reportArgumentType]

    def mirror_actions(self, actions: torch.Tensor) -> torch.Tensor:
        """Return the mirror images of actions alone. Shape (batch, num_actions)."""
        return _reflect(actions, self.action_matrix)


def _reflect(values: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Apply a mirror to each row, in the precision of the values: the losses may be computed in a lower one."""
    with torch.autocast(values.device.type, enabled=False):
        return values @ matrix.T.to(values.dtype)


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


class EquivariantModel(MLPModel):
    """RSL-RL's MLP model whose weights are tied so that it commutes with a mirror (Su et al. 2024, arXiv:2403.17320).

    The units of a hidden layer come in pairs: what one computes from an observation, the other computes from its mirror
    image. So half of the weights of each layer follow from the other half. Only the free half are parameters; a state
    dictionary has all of them and is that of an `MLPModel`, which plays, exports and deploys what was learned here.
    A layer costs as much time as one without ties.
    """

    def __init__(
        self,
        obs: TensorDict,
        obs_groups: dict[str, list[str]],
        obs_set: str,
        output_dim: int,
        mirror: MirrorImages,
        **options: Any,
    ) -> None:
        """Build the network.

        Args:
            obs: Observations by group, shape (num_envs, size) each.
            output_dim: Size of the output: of an action, or 1 for values, which are the same for a mirror image.

        Raises:
            ValueError: A layer has an odd number of units, or the distribution takes more than means.
        """
        super().__init__(obs, obs_groups, obs_set, output_dim, **options)
        self._mirror = mirror
        image_of_input = torch.block_diag(*[mirror.matrices[group] for group in self.obs_groups])
        image_of_output = torch.eye(output_dim, dtype=image_of_input.dtype)
        if self.distribution is not None:
            if self.distribution.input_dim != output_dim:
                raise ValueError(f"{type(self.distribution).__name__} takes more than the means of actions")
            image_of_output = mirror.action_matrix
            for deviations in self.distribution.parameters():
                if deviations.requires_grad:  # else all stay equal
                    _tie_pairs(deviations, image_of_output.abs().to(deviations.dtype))
        linear = [name for name, layer in self.mlp.named_children() if isinstance(layer, nn.Linear)]
        for name in linear:
            layer: Any = self.mlp.get_submodule(name)
            if name == linear[0]:
                tied: nn.Module = _FirstLayer(layer, image_of_input)
            elif name == linear[-1]:
                tied = _LastLayer(layer, image_of_output)
            else:
                tied = _HiddenLayer(layer)
            self.mlp.add_module(name, tied)

    def update_normalization(self, obs: TensorDict) -> None:
        """Take in observations and their mirror images, so that the statistics are symmetric too; see RSL-RL."""
        both, _ = self._mirror(None, obs, None)
        super().update_normalization(both)  # pyright: ignore[reportArgumentType]


def _tie_pairs(parameter: nn.Parameter, image: torch.Tensor) -> None:
    """Keep a parameter, all of whose values are equal at first, equal for images of each other. Shape (size,)."""
    parameter.register_hook(lambda grad: (grad + image.to(grad.device) @ grad) / 2)


class _TiedLayer(nn.Module):
    """A linear layer that is saved and loaded as `nn.Linear`, and of whose weights only a part are parameters."""

    free_weight: nn.Parameter
    free_bias: nn.Parameter

    def __init__(self, layer: nn.Linear, **buffers: torch.Tensor) -> None:
        super().__init__()
        for name, matrix in buffers.items():  # before `take_free`, which may read them
            self.register_buffer(name, matrix.to(layer.weight), persistent=False)
        weight, bias = self.take_free(layer.weight.detach(), layer.bias.detach())
        self.free_weight, self.free_bias = nn.Parameter(weight), nn.Parameter(bias)

    def all_weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weight and bias as those of `nn.Linear`."""
        raise NotImplementedError

    def take_free(self, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of the free part of weight and bias. Where outputs are pairs: that of each first unit."""
        num_units = weight.shape[0]
        if num_units % 2:
            raise ValueError(f"a hidden layer of {num_units} units has no pairs")
        return weight[: num_units // 2].clone(), bias[: num_units // 2].clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return weight x + bias, shape (batch, out); x has shape (batch, in)."""
        weight, bias = self.all_weights()
        return nn.functional.linear(x, weight, bias)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        weight, bias = self.all_weights()
        destination[f"{prefix}weight"] = weight if keep_vars else weight.detach()
        destination[f"{prefix}bias"] = bias if keep_vars else bias.detach().clone()

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],  # noqa: ARG002
        strict: bool,  # noqa: ARG002
        missing_keys: list[str],
        unexpected_keys: list[str],  # noqa: ARG002
        error_msgs: list[str],
    ) -> None:
        names = [f"{prefix}{name}" for name in ("weight", "bias")]
        missing_keys += [name for name in names if name not in state_dict]
        if missing_keys:
            return
        wanted = [state_dict[name].to(self.free_weight) for name in names]
        with torch.no_grad():
            found = self.all_weights()
            if any(theirs.shape != ours.shape for theirs, ours in zip(wanted, found, strict=True)):
                error_msgs.append(f"{names[0]} has shape {tuple(wanted[0].shape)}, here {tuple(found[0].shape)}")
                return
            weight, bias = self.take_free(*wanted)
            self.free_weight.copy_(weight)
            self.free_bias.copy_(bias)
            same = zip(wanted, self.all_weights(), strict=True)
            if not all(torch.allclose(theirs, ours, atol=1e-5) for theirs, ours in same):
                error_msgs.append(
                    f"{names[0]} is not its own mirror image: it was learned without "
                    "--agent.algorithm.symmetry-cfg.use-equivariant-networks"
                )


class _FirstLayer(_TiedLayer):
    """From an observation x to pairs A x and A M x, where M x is the mirror image."""

    image: torch.Tensor

    def __init__(self, layer: nn.Linear, image: torch.Tensor) -> None:
        super().__init__(layer, image=image)

    def all_weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        weight = torch.cat([self.free_weight, self.free_weight @ self.image])
        return weight, torch.cat([self.free_bias, self.free_bias])


class _HiddenLayer(_TiedLayer):
    """From pairs x, y to pairs A x + B y and A y + B x. The free weights are A and B side by side."""

    def all_weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        one, other = self.free_weight.chunk(2, dim=1)
        weight = torch.cat([self.free_weight, torch.cat([other, one], dim=1)])
        return weight, torch.cat([self.free_bias, self.free_bias])


class _LastLayer(_TiedLayer):
    """From pairs x, y to A x + N A y + b, where N is the mirror of the output and b is its own image."""

    image: torch.Tensor
    spread: torch.Tensor

    def __init__(self, layer: nn.Linear, image: torch.Tensor) -> None:
        super().__init__(layer, image=image, spread=_find_pairs(image))

    def all_weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        weight = torch.cat([self.free_weight, self.image @ self.free_weight], dim=1)
        return weight, self.spread @ self.free_bias

    def take_free(self, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first_of_pair = self.spread.abs().argmax(dim=0)
        return weight[:, : weight.shape[1] // 2].clone(), bias[first_of_pair].clone()


def _find_pairs(image: torch.Tensor) -> torch.Tensor:
    """Return the matrix from one value per pair to a vector that is its own mirror image. Shape (size, num_pairs)."""
    # The image is a permutation with signs, of shape (size, size).
    partner = image.abs().argmax(dim=0)
    # A component that is its own partner is a pair, unless the mirror reverses its sign.
    columns = [one for one, other in enumerate(partner) if one < other or (one == other and image[one, one] > 0)]
    whole = torch.eye(len(image), dtype=image.dtype, device=image.device)
    spread = whole + image * (partner[None, :] != torch.arange(len(image), device=image.device))
    return spread[:, columns]
