"""What a checkpoint holds beside what was learned: every rank's environments and random numbers."""

import io
from typing import Any

import numpy as np
import torch

from mjtrain.env.base import TaskEnv
from mjtrain.learning.collectives import Collectives
from mjtrain.learning.rng import get_rng_state
from mjtrain.rank import RankContext


def gather_rank_states(
    env: TaskEnv, own: dict[str, Any], device: str, collectives: Collectives, context: RankContext
) -> list[dict[str, Any]]:
    """Return what every rank has of its own, by rank, on the CPU; empty except on the main rank.

    Every rank must call it.

    Args:
        env: This rank's environments.
        own: What else this rank has, by name.
        device: Torch device of this rank.
        collectives: Carries it.
        context: This rank.
    """
    mine = io.BytesIO()
    torch.save({"rng": get_rng_state(device), "env": env.state_dict(), **as_tensors(own)}, mine)
    gathered = collectives.gather_bytes(mine.getvalue(), context)
    if not context.is_main:
        return []
    # To the CPU: tensors name the GPU of their rank, which this process must not touch, and other nodes may have more.
    return [torch.load(io.BytesIO(state), map_location="cpu", weights_only=True) for state in gathered]


def as_tensors(value: Any) -> Any:
    """Replace the arrays of numpy in nested dictionaries and lists by tensors, and its numbers by plain ones.

    What has none of them is returned as it is.
    """
    if isinstance(value, dict):
        converted = {key: as_tensors(item) for key, item in value.items()}
        return converted if any(converted[key] is not value[key] for key in value) else value
    if isinstance(value, list | tuple):
        items = [as_tensors(item) for item in value]
        return type(value)(items) if any(a is not b for a, b in zip(items, value, strict=True)) else value
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))  # a copy: arrays of other libraries may not be written to
    return value.item() if isinstance(value, np.generic) else value
