"""A trained policy as a function, for programs of one's own."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from mjtrain.errors import RequestError
from mjtrain.playing.player import Player
from mjtrain.rank import RankContext
from mjtrain.runs.trained_run import TrainedRun


class TrainedPolicy:
    """Maps observations to actions as `play` does: the mean action, without exploration noise.

    Observations are those of the environment, in the units of their terms; the policy normalises them itself, if it
    was trained with `obs_normalization`. Actions are normalised too, nominally in [-1, 1]: the environment's action
    terms clip and scale them.
    """

    def __init__(self, run: TrainedRun, device: str = "cpu") -> None:
        """Build the network and load the weights.

        Args:
            run: What was trained.
            device: Torch device on which it is evaluated.

        Raises:
            RequestError: The robot or the checkpoint do not fit.
        """
        player = Player(RankContext(device=device), run)
        assert player.policy is not None
        self._policy, self._device = player.policy, torch.device(device)
        self.task = run.task
        """What it was trained on."""
        self.checkpoint = player.checkpoint
        """File of its weights."""
        self.iteration = self._policy.iteration
        """Iteration of the training at which they were saved."""
        seen = player.env.observe()
        self.groups = {name: seen[name].shape[1] for name in self._policy.groups}
        """Sizes of the observation groups that it reads, by name; in this order they are its input side by side."""
        self.num_actions = player.env.num_actions
        """Size of an action."""
        player.close()
        self._num_envs = 1

    @property
    def input_size(self) -> int:
        """Size of the observations of all groups side by side."""
        return sum(self.groups.values())

    def __call__(self, observations: Any) -> Any:
        """Return the actions for observations.

        Args:
            observations: For each of `groups` by name an array of shape (num_envs, size), as `Env.step` returns them;
                further groups are not read. Or one array of all groups side by side, shape (num_envs, input_size).
                Tensors of torch or arrays of numpy. Without the axis of worlds, the actions have none either.

        Returns:
            Actions of shape (num_envs, num_actions), float32: a tensor on the device of the observations, or an array.

        Raises:
            RequestError: A group is missing, or has another size.
        """
        given = observations if isinstance(observations, Mapping) else self._split(observations)
        for name, size in self.groups.items():
            if name not in given:
                raise RequestError(f"observations have no group {name}; the policy reads {', '.join(self.groups)}")
            if given[name].shape[-1:] != (size,):
                raise RequestError(
                    f"observations of group {name} have the shape {tuple(given[name].shape)}; the policy reads "
                    f"(num_envs, {size})"
                )
        first = given[next(iter(self.groups))]
        batch = {
            name: torch.as_tensor(given[name], dtype=torch.float32, device=self._device).reshape(-1, size)
            for name, size in self.groups.items()
        }
        self._num_envs = first[..., 0].size if isinstance(first, np.ndarray) else first[..., 0].numel()
        actions = self._policy(batch).reshape(*first.shape[:-1], self.num_actions)
        return actions.to(first.device) if isinstance(first, torch.Tensor) else actions.cpu().numpy()

    def reset(self, done: Any = None) -> None:
        """Forget what a recurrent policy remembers; others remember nothing.

        Args:
            done: Worlds whose episode ended, boolean, shape (num_envs,). None: all of those of the last call.
        """
        worlds = [True] * self._num_envs if done is None else done
        self._policy.reset(torch.as_tensor(worlds, dtype=torch.bool, device=self._device))

    def _split(self, observations: Any) -> dict[str, Any]:
        if observations.shape[-1:] != (self.input_size,):
            parts = " + ".join(f"{name} {size}" for name, size in self.groups.items())
            raise RequestError(
                f"observations have the shape {tuple(observations.shape)}; the policy reads (num_envs, "
                f"{self.input_size}), which is {parts}"
            )
        ends = np.cumsum(list(self.groups.values())).tolist()
        starts = [0, *ends[:-1]]
        return {name: observations[..., a:b] for name, a, b in zip(self.groups, starts, ends, strict=True)}
