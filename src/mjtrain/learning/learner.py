"""What a training gets of each iteration, and what `play` and `export` need of a learning library."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from mjtrain.runtime.errors import RequestError


@dataclass(kw_only=True)
class IterationResult:
    """One iteration of a training: a rollout and an update. Hooks may change it, on all ranks alike."""

    iteration: int
    """Iterations done, this one included."""

    is_last: bool
    """Whether the training ends here, as planned, because a stop was requested or because a hook says so; the same on
    all ranks."""

    metrics: dict[str, Any]
    """Metrics of the whole job, as in metrics.jsonl; hooks may add theirs."""

    pause_requested: bool = False
    """Whether the training pauses after the next checkpoint, as the launcher asked; the same on all ranks."""

    is_best: bool = False
    """Whether it is better than all before, by --best-metric, and is therefore saved; the same on all ranks."""


class Policy(Protocol):
    """A trained policy, for use without training: no exploration noise, its normaliser inside.

    A class may inherit from this one. It need not define `reset` then if it remembers nothing, `estimate` if it
    estimates nothing, nor `to_script_module` if one module serves both.
    """

    inputs: dict[str, tuple[int, ...]]
    """Shape of one environment's observation in each group that the network reads, in order: (size,) of a flat group,
    (channels, height, width) of an image group."""

    dtypes: dict[str, torch.dtype]
    """Type of each of these groups: float32, or uint8 for images whose values mean value / 255."""

    iteration: int
    """Iteration of the training at which the weights were saved."""

    estimated_group: str | None
    """Flat observation group that the policy learned to tell from images, see `AuxiliaryConfig`; None if there is none,
    or if the environment does not observe it."""

    @abstractmethod
    def load(self, content: dict[str, Any], path: Path) -> None:
        """Take the weights of a checkpoint; nothing changes if they do not fit.

        Args:
            content: What `checkpoint.load_checkpoint` returned, on any device.
            path: Where it comes from, for messages.

        Raises:
            CheckpointError: It has no policy, or one of other sizes.
        """

    @abstractmethod
    def __call__(self, observations: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean actions, shape (num_envs, num_actions), for observations by group, (num_envs, *shape)."""
        ...

    def estimate(self) -> torch.Tensor:
        """Return what the last call's observations tell of `estimated_group`, in its units. Shape (num_envs, size)."""
        raise RequestError("the policy estimates nothing")

    def reset(self, done: torch.Tensor | None) -> None:
        """Reset the memory of the masked environments, if the network has one. Boolean, shape (num_envs,).

        None: of all; the next call may be for another number of them.
        """

    @abstractmethod
    def to_onnx_module(self) -> torch.nn.Module:
        """Return a module for torch.onnx.export on the CPU.

        It takes the flat groups side by side, shape (batch, size), unless there are none; and then each image group,
        shape (batch, channels, height, width), in the order of `inputs`. It returns (batch, num_actions).

        Raises:
            RequestError: The network has a memory, which an exported file could not keep.
        """
        ...

    def to_script_module(self) -> torch.nn.Module:
        """Return a module for torch.jit on the CPU; inputs, output and errors as those of `to_onnx_module`."""
        return self.to_onnx_module()
