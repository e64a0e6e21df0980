"""Whether exported files answer as the policy does."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from mjtrain.export.networks import INPUT
from mjtrain.play.player import Player

TOLERANCE = 1e-5
"""Greatest difference of an action, in the unit of the policy's output."""


def record_observations(player: Player, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Let a policy act, and record what it saw and answered.

    Returns:
        Observations of its groups side by side, shape (count, size); actions, shape (count, num_actions).
    """
    assert player.policy is not None
    seen, answered = [], []
    for _ in range(-(-count // player.env.num_envs)):
        observations = player.env.observe()
        seen.append(torch.cat([observations[group] for group in player.policy.groups], dim=1).cpu())
        answered.append(player.policy(observations).cpu())
        player.step()
    return torch.cat(seen)[:count], torch.cat(answered)[:count]


def onnx_difference(path: Path, observations: torch.Tensor, actions: torch.Tensor) -> float:
    """Return how far the answers of an ONNX file are off at most, to all at once and to one at a time."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return _difference(lambda batch: np.asarray(session.run(None, {INPUT: batch.numpy()})[0]), observations, actions)


def torchscript_difference(path: Path, observations: torch.Tensor, actions: torch.Tensor) -> float:
    """Return the same of a TorchScript file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would have everybody give TorchScript up
        module = torch.jit.load(str(path))
    with torch.inference_mode():
        return _difference(lambda batch: module(batch).numpy(), observations, actions)


def _difference(
    answer: Callable[[torch.Tensor], np.ndarray], observations: torch.Tensor, actions: torch.Tensor
) -> float:
    together = answer(observations)
    alone = np.concatenate([answer(row) for row in observations.split(1)])
    return float(max(np.abs(together - actions.numpy()).max(), np.abs(alone - actions.numpy()).max()))
