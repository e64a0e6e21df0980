"""What the training loop needs of a learning library."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from mjtrain.learning.collectives import Collectives

Observations = Mapping[str, torch.Tensor]
"""Observations by group. Shape (num_envs, size) each, or (num_envs, channels, height, width) of images."""


class Algorithm(Protocol):
    """A library's networks, storage and update, in one rank of a job.

    `loop.TrainingLoop` calls it. For each iteration, on every rank and in the same order:

        num_steps times:  act, the environment's step, process_env_step     under torch.inference_mode
        finish_rollout                                                      under torch.inference_mode
        update, pop_means, learning_rate, parameters

    With several ranks the process group is up, and every rank must learn the same: gradients, normalisers and whatever
    else follows from samples are those of all ranks' samples together, and no rank leaves a loop of collectives before
    the others.

    Tensors are on the device of the rank. Where a state is asked for, arrays of numpy do as well as tensors: the loop
    saves arrays as tensors.

    A class may inherit from this one, and need not define `begin`, `rank_state` and `load_rank_state` then.
    """

    collectives: Collectives
    """What the ranks sum while they learn; the time that they wait in it is not counted as learning."""

    @property
    @abstractmethod
    def learning_rate(self) -> float:
        """Step size of the optimiser now."""
        ...

    def begin(self) -> None:
        """Get ready for the first rollout, after whatever was restored; by default there is nothing to do.

        Raises:
            RequestError: Something that was asked for is missing.
        """

    @abstractmethod
    def broadcast(self) -> None:
        """Give all ranks the parameters and normalisers of rank 0; called only if there are several ranks."""

    @abstractmethod
    def act(self, observations: Observations) -> torch.Tensor:
        """Sample actions, shape (num_envs, num_actions), and keep what the update needs to know of them."""
        ...

    @abstractmethod
    def process_env_step(
        self, observations: Observations, rewards: torch.Tensor, terminated: torch.Tensor, truncated: torch.Tensor
    ) -> None:
        """Keep what came of the actions.

        Args:
            observations: After the step. Where an episode ended, the first ones of the next episode: those in which it
                ended are not computed. So what would have followed after a truncation must be estimated by the value of
                the observations before the step, on which `act` was called.
            rewards: Shape (num_envs,).
            terminated: Episodes that ended by themselves; nothing follows. Boolean, shape (num_envs,).
            truncated: Episodes that were cut off, never terminated ones. Boolean, shape (num_envs,).
        """

    @abstractmethod
    def finish_rollout(self, observations: Observations) -> Mapping[str, torch.Tensor]:
        """Compute what is to be learned from a rollout, such as returns, from the observations after its last step.

        Returns:
            Tensors that are finite if all that the rollout saw and did was, by what they are, in the plural.
        """
        ...

    @abstractmethod
    def rollout_observations(self) -> Mapping[str, torch.Tensor]:
        """Return the observations of the last rollout by group, shape (num_steps, num_envs, ...).

        Asked for when something was not finite, to find the term to blame. A group that was not kept may be missing.
        """
        ...

    @abstractmethod
    def update(self) -> dict[str, float]:
        """Learn from the rollout, and return the mean losses of this rank by name."""
        ...

    @abstractmethod
    def pop_means(self) -> dict[str, torch.Tensor | float | None]:
        """Return further means over this rank's samples since the last call, by the names of their metrics.

        Of a stochastic policy that is `action_std`, and `kl` in nats if it is measured. The names, and which of them
        are None, are the same on all ranks.
        """
        ...

    @abstractmethod
    def parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Return all parameters that are learned, by names such as "the actor's mlp.0.weight"."""
        ...

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return what all ranks have in common and the future depends on: networks, normalisers, optimiser.

        The rest of a checkpoint is the loop's. Keys that it uses are format, learner, iter, learning_rate,
        last_episodes, ranks and infos.
        """
        ...

    @abstractmethod
    def load_state_dict(self, content: dict[str, Any], path: Path) -> None:
        """Continue from a checkpoint.

        Args:
            content: All of it, on the CPU: what `state_dict` returned, and "learning_rate".
            path: Where it comes from, for messages.

        Raises:
            RequestError: It does not fit; the message names the first tensor that differs.
        """

    @abstractmethod
    def load_weights(self, content: dict[str, Any], path: Path) -> None:
        """Take networks and normalisers of a checkpoint, and nothing else of it; arguments as of `load_state_dict`."""

    def rank_state(self) -> dict[str, Any]:
        """Return what this rank alone has between two iterations, such as the memory of recurrent networks.

        Environments and the random numbers of torch, numpy and Python are saved by the loop, under "env" and "rng". A
        line names what is lost under "memory" and "buffer" where environments start again. By default there is nothing.
        """
        return {}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Restore what `rank_state` returned, on the CPU. Keys may be missing in files of earlier versions."""
