"""Comparison of exported files with the policy."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from mjtrain.exporting.networks import INPUT
from mjtrain.playing.player import Player

TOLERANCE = 1e-5
"""Largest allowed difference of an action, in the unit of the policy's output."""


def record_observations(player: Player, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Step a policy in its environment, and record its observations and actions.

    Returns:
        The concatenated observations of its groups, shape (count, size); the actions, shape (count, num_actions).
    """
    assert player.policy is not None
    observed, acted = [], []
    for _ in range(-(-count // player.env.num_envs)):
        observations = player.env.observe()
        observed.append(torch.cat([observations[group] for group in player.policy.groups], dim=1).cpu())
        acted.append(player.policy(observations).cpu())
        player.step()
    return torch.cat(observed)[:count], torch.cat(acted)[:count]


def onnx_difference(path: Path, observations: torch.Tensor, actions: torch.Tensor) -> float:
    """Return the largest difference of an ONNX file's actions, for all observations at once and one at a time."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return _difference(lambda batch: np.asarray(session.run(None, {INPUT: batch.numpy()})[0]), observations, actions)


def torchscript_difference(path: Path, observations: torch.Tensor, actions: torch.Tensor) -> float:
    """Return the same for a TorchScript file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that TorchScript is deprecated
        module = torch.jit.load(str(path))
    with torch.inference_mode():
        return _difference(lambda batch: module(batch).numpy(), observations, actions)


def _difference(
    policy: Callable[[torch.Tensor], np.ndarray], observations: torch.Tensor, actions: torch.Tensor
) -> float:
    batched = policy(observations)
    single = np.concatenate([policy(row) for row in observations.split(1)])
    return float(max(np.abs(batched - actions.numpy()).max(), np.abs(single - actions.numpy()).max()))
