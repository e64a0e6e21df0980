"""A trained policy as a function, for programs of one's own."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mjtrain.config.type_check import show
from mjtrain.evaluation.episodes import Estimates
from mjtrain.evaluation.playing.player import Player
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext


class TrainedPolicy:
    """Maps observations to actions as `play` does: the mean action, without exploration noise.

    Observations are those of the environment, in the units of their terms; the policy normalises them itself, if it
    was trained with `obs_normalization`. Actions are normalised too, nominally in [-1, 1]: the environment's action
    terms clip and scale them.
    """

    def __init__(self, run: TrainedRun, device: str = "cpu") -> None:
        """Build the network and load the weights."""
        player = Player(RankContext(device=device), run)
        assert player.policy is not None
        self._policy, self._device = player.policy, torch.device(device)
        self.task = run.task
        """What it was trained on."""
        self.checkpoint = player.checkpoint
        """File of its weights."""
        self.iteration = self._policy.iteration
        """Iteration of the training at which they were saved."""
        self.inputs = self._policy.inputs
        """Shape of one environment's observation in each group that it reads, by name: (size,), or (channels, height,
        width) of images."""
        self.num_actions = player.env.num_actions
        """Size of an action."""
        self._estimates = None if self._policy.estimated_group is None else Estimates(player.env, self._policy)
        player.close()

    @property
    def input_size(self) -> int:
        """Size of the observations of all flat groups side by side."""
        return sum(shape[0] for shape in self.inputs.values() if len(shape) == 1)

    def __call__(self, observations: Any) -> Any:
        """Return the actions for observations.

        Args:
            observations: For each of `inputs` by name an array of shape (num_envs, *shape), as `Env.step` returns them;
                further groups are not read. Or, if it sees no images, one array of all groups side by side, shape
                (num_envs, input_size). Tensors of torch or arrays of numpy. Without the axis of worlds, the actions
                have none either.

        Returns:
            Actions of shape (num_envs, num_actions), float32: a tensor on the device of the observations, or an array.

        Raises:
            RequestError: A group is missing, or has another shape or number of environments; or an image of 0..255 is
                not uint8, or one of float32 is; or a recurrent policy remembers another number of environments.
        """
        given = observations if isinstance(observations, Mapping) else self._split(observations)
        for name in self.inputs:
            if name not in given:
                raise RequestError(f"observations have no group {name}; the policy reads {', '.join(self.inputs)}")
            self._check(name, given[name])
        all_axes = {name: tuple(given[name].shape[: -len(shape)]) for name, shape in self.inputs.items()}
        first, axes = next(iter(all_axes.items()))
        if other := next((name for name in all_axes if all_axes[name] != axes), None):
            raise RequestError(
                f"observations of group {other} have the shape {tuple(given[other].shape)}, and those of {first} "
                f"{tuple(given[first].shape)}; give the same number of environments"
            )
        batch = {
            name: torch.as_tensor(given[name], dtype=self._policy.dtypes[name], device=self._device).reshape(-1, *shape)
            for name, shape in self.inputs.items()
        }
        actions = self._policy(batch).reshape(*axes, self.num_actions)
        like = given[first]
        return actions.to(like.device) if isinstance(like, torch.Tensor) else actions.cpu().numpy()

    def estimate(self) -> dict[str, torch.Tensor]:
        """Return what the images of the last call tell of the group that was supervised, see `AuxiliaryConfig`.

        Returns:
            By observation term, in its unit: shape (num_envs, size), on the policy's device.

        Raises:
            RequestError: The policy was trained without.
        """
        if self._estimates is None:
            flag = "--agent.algorithm.auxiliary-cfg.group"
            raise RequestError(f"the policy estimates nothing: it was trained without {flag}")
        return self._estimates.read()

    def _check(self, name: str, given: Any) -> None:
        """Raise a RequestError unless observations of a group fit."""
        shape, is_uint8 = self.inputs[name], self._policy.dtypes[name] == torch.uint8
        _check_array(f"observations of group {name}", given)
        if tuple(given.shape[-len(shape) :]) != shape:
            expected = ", ".join(map(str, shape))
            raise RequestError(
                f"observations of group {name} have the shape {tuple(given.shape)}; the policy reads "
                f"(num_envs, {expected})"
            )
        if is_uint8 and "uint8" not in str(given.dtype):
            raise RequestError(f"observations of group {name} are {given.dtype}; the policy reads uint8, 0 to 255")
        if not is_uint8 and len(shape) > 1 and "uint8" in str(given.dtype):
            raise RequestError(
                f"observations of group {name} are {given.dtype}; the policy reads float32, where colours are 0 to 1"
            )

    def reset(self, done: Any = None) -> None:
        """Forget what a recurrent policy remembers; others remember nothing.

        Args:
            done: Worlds whose episode ended, boolean, shape (num_envs,). None: all, and the next call may be for
                another number of them.
        """
        self._policy.reset(None if done is None else torch.as_tensor(done, dtype=torch.bool, device=self._device))

    def _split(self, observations: Any) -> dict[str, Any]:
        images = [name for name, shape in self.inputs.items() if len(shape) > 1]
        if images:
            raise RequestError(f"the policy reads images ({', '.join(images)}); give observations by group")
        _check_array("observations", observations)
        if observations.shape[-1:] != (self.input_size,):
            parts = " + ".join(f"{name} {shape[0]}" for name, shape in self.inputs.items())
            raise RequestError(
                f"observations have the shape {tuple(observations.shape)}; the policy reads (num_envs, "
                f"{self.input_size}), which is {parts}"
            )
        ends = np.cumsum([shape[0] for shape in self.inputs.values()]).tolist()
        starts = [0, *ends[:-1]]
        return {name: observations[..., a:b] for name, a, b in zip(self.inputs, starts, ends, strict=True)}


def _check_array(what: str, given: Any) -> None:
    if not hasattr(given, "shape"):
        raise RequestError(f"{what}: is {show(given)}; give a tensor or an array of numpy")
