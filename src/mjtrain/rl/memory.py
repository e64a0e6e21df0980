"""What recurrent networks remember from step to step, to save and restore."""

from collections.abc import Mapping
from typing import Any

import torch
from rsl_rl.models import MLPModel


def get_memory(networks: Mapping[str, MLPModel]) -> dict[str, list[torch.Tensor]]:
    """Return the hidden states of networks by name: of a GRU one tensor, of an LSTM two; nothing for other networks.

    Each is of shape (num_layers, num_envs, hidden_dim).
    """
    states = {name: network.get_hidden_state() for name, network in networks.items()}
    return {
        name: list(state) if isinstance(state, tuple) else [state]
        for name, state in states.items()
        if state is not None
    }


def set_memory(networks: Mapping[str, MLPModel], memory: Mapping[str, list[torch.Tensor]], device: str) -> None:
    """Restore what `get_memory` returned, for networks of the same kind and as many environments.

    Args:
        networks: By name.
        memory: Hidden states; a network that is not in it forgets what it remembers.
        device: Torch device of the networks.
    """
    for name, network in networks.items():
        state: Any = tuple(tensor.to(device, copy=True) for tensor in memory.get(name, ()))
        network.reset(hidden_state=state[0] if len(state) == 1 else state or None)
