"""What a training needs of any environment, built from terms or external."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import torch

from mjtrain.env.statistics import EnvLog, EpisodeStatistics
from mjtrain.runtime.errors import RequestError


class TaskEnv(Protocol):
    """Steps many environments at once; one whose episode ends is reset within the same step.

    `Env` implements it with worlds of an engine, and `external.env.ForeignEnv` around environments of others. The
    methods about what environments share, and about broken ones, do nothing where a subclass does not have them.
    """

    num_envs: int
    """Number of environments."""

    device: torch.device
    """Where all tensors live."""

    step_dt: float
    """Env step, in seconds."""

    max_episode_steps: int
    """Longest episode, in env steps."""

    episode_step: torch.Tensor
    """Env steps since the episode began. Shape (num_envs,)."""

    statistics: EpisodeStatistics
    """Sums over finished episodes."""

    reward_terms: torch.Tensor
    """Parts of the last step's reward, in the order of config.rewards. Shape (num_envs, num_rewards)."""

    causes: torch.Tensor
    """Which of config.terminations held in the last step. Boolean, shape (num_envs, num_terminations)."""

    successes: torch.Tensor
    """What each of config.successes measures. Shape (num_envs, num_successes)."""

    config: Any
    """Names its parts: rewards, terminations, commands, successes and cameras."""

    @property
    def num_actions(self) -> int:
        """Size of an action."""
        ...

    @property
    def log(self) -> EnvLog | None:
        """What environments of others tell of themselves; None where all that is known is in the statistics."""
        ...

    def observe(self) -> dict[str, torch.Tensor]:
        """Return the current observations by group. Shape (num_envs, *shape) each."""
        ...

    def step(self, action: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Advance by one env step with actions of shape (num_envs, num_actions), nominally in [-1, 1].

        Returns:
            Observations by group; rewards, shape (num_envs,); terminated and truncated, boolean, shape (num_envs,).
        """
        ...

    def reset(self, mask: torch.Tensor) -> None:
        """Begin new episodes in the masked environments. Boolean, shape (num_envs,)."""

    def stagger(self) -> None:
        """Let the running episodes end at different times, where that is possible."""

    def observation_widths(self, group: str) -> dict[str, int]:
        """Return how many columns each part of an observation group has, by name in their order."""
        ...

    def command(self, name: str) -> torch.Tensor:
        """Return the current command of one of config.commands. Shape (num_envs, size)."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all that the future depends on; tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state.

        Raises:
            ValueError: It cannot be restored; the message says why. Then nothing has changed.
        """

    def load_shared(self, state: dict[str, Any]) -> None:
        """Continue with what environments of all ranks share, from the state of any of them."""

    def new_shared(self) -> list[str]:
        """Return what other ranks must know before what is shared is merged; mostly nothing."""
        return []

    def merge_shared(self, add_over_ranks: Callable[[torch.Tensor], torch.Tensor], new: Iterable[str]) -> None:
        """Bring together what the environments of all ranks share; every rank must call it between two iterations.

        Args:
            add_over_ranks: Adds a tensor up over ranks, in place, and returns it.
            new: What `new_shared` has returned on any rank since the last call, the same on all ranks.
        """

    def shared_totals(self) -> dict[str, torch.Tensor]:
        """Return what is the same on all ranks between two iterations, by name."""
        return {}

    def explain_broken_worlds(self) -> str:
        """Say what most likely broke the worlds that broke since the last dump, to follow a colon; empty for none."""
        return ""

    def dump_broken_worlds(self, folder: Path, name: str) -> list[Path]:  # noqa: ARG002
        """Write what led to states that were not finite since the last call, if that is known; return the files."""
        return []

    def close(self) -> None:
        """Give threads, processes and buffers back."""


def check_action(action: Any, num_envs: int, num_actions: int) -> None:
    """Raise a RequestError unless this is a tensor of real numbers, shape (num_envs, num_actions)."""
    shape = (num_envs, num_actions)
    if not isinstance(action, torch.Tensor):
        raise RequestError(f"step: the actions are of type {type(action).__name__}; give a tensor of shape {shape}")
    if action.is_nested or action.layout is not torch.strided or action.is_meta:
        raise RequestError(f"step: the actions are sparse, nested or without data; give a dense one of shape {shape}")
    if action.shape != shape:
        raise RequestError(f"step: the actions have the shape {tuple(action.shape)}; give {shape}")
    if action.is_complex():
        raise RequestError(f"step: the actions are of {action.dtype}; give real numbers")


def check_mask(name: str, mask: Any, num_envs: int) -> None:
    """Raise a RequestError unless this is a boolean tensor of shape (num_envs,)."""
    if not isinstance(mask, torch.Tensor):
        kind = type(mask).__name__
        raise RequestError(f"reset: {name} is of type {kind}; give a boolean tensor of shape ({num_envs},)")
    if mask.shape != (num_envs,) or mask.dtype != torch.bool:
        kind = f"the shape {tuple(mask.shape)} of {mask.dtype}"
        raise RequestError(f"reset: {name} has {kind}; give booleans of shape ({num_envs},)")
