"""What a training, `play` and `export` need of a learning library: two small protocols.

`loop.py` has the training loop that implements `Learner` for all libraries; `library.py` chooses the library.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
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


class Learner(Protocol):
    """Learns a policy in this rank's environments, together with the other ranks.

    Every rank calls the same methods in the same order, as most of them communicate.
    """

    after_step: Callable[[], None] | None
    """Called after each env step; it must not wait for the device, nor draw random numbers."""

    @property
    def iteration(self) -> int:
        """Iterations done."""
        ...

    @property
    def env_steps_total(self) -> int:
        """Env steps done, summed over ranks."""
        ...

    @property
    def env_steps_per_iteration(self) -> int:
        """Env steps that all ranks together do in an iteration."""
        ...

    def iterate(self, last_iteration: int) -> Iterator[IterationResult]:
        """Learn until the run has last_iteration iterations or a stop is requested; yield after each iteration.

        Raises:
            FloatingPointError: The training diverged; the message says what to look at.
        """
        ...

    def phases(self) -> list[tuple[str, Any, str]]:
        """Return the parts of an iteration for a profile: a name, an object, and its method that is the part."""
        ...

    def save(self, path: Path, infos: dict[str, Any]) -> None:
        """Write a checkpoint atomically; the main rank writes, and every rank must call it.

        Raises:
            OSError: The main rank could not write it.
        """

    def resume(self, path: Path | None, task: str) -> str | None:
        """Continue from a checkpoint as if the training had never stopped; every rank must call it.

        Args:
            path: File of the checkpoint. Only the main rank's counts; None there changes nothing.
            task: Name of the task that is trained.

        Returns:
            A line about what could not be restored, or None.

        Raises:
            RequestError: It is not a valid checkpoint, or one of another task or other networks.
        """
        ...

    def load_weights(self, path: Path, critic: Path | None = None) -> None:
        """Start from the networks and normalisers of a checkpoint; optimiser and counters stay as they are.

        Args:
            critic: Checkpoint of which the critic is taken instead; only for `--learner rsl_rl`.

        Raises:
            RequestError: It is not a valid checkpoint, or one of other networks.
        """

    def policy_weights(self) -> dict[str, Any]:
        """Return what `Policy.load` takes: the policy as it is now. Nothing is copied, and no rank waits for others."""
        ...

    def agree(self, yes: bool) -> bool:
        """Tell whether all ranks say yes; every rank must call it."""
        ...

    def check_drift(self) -> None:
        """Compare what the ranks have learned, bit for bit; every rank must call it.

        Raises:
            RuntimeError: The ranks differ; the message says where.
        """


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
