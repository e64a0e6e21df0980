"""What environments observe and do, as Gymnasium's spaces."""

from collections.abc import Mapping

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Space

from mjtrain.env.env import Env


def observation_space(observations: Mapping[str, torch.Tensor]) -> Dict:
    """Return the space of one environment's observations, by group.

    Args:
        observations: As `Env.observe` returns them: float32 of shape (num_envs, size), which have no bounds; or images
            of shape (num_envs, channels, height, width), of float32 or of uint8.
    """
    return Dict({name: _box(values) for name, values in observations.items()})


def _box(values: torch.Tensor) -> Box:
    shape = tuple(values.shape[1:])
    if values.dtype == torch.uint8:
        return Box(0, 255, shape, np.uint8)
    return Box(-np.inf, np.inf, shape, np.float32)


def action_space(env: Env) -> Space:
    """Return the space of one environment's actions: each within the bounds to which its action term clips it."""
    low, high = np.array([column["clip"] for column in env.action_table], dtype=np.float32).reshape(-1, 2).T
    return Box(low, high, dtype=np.float32)
