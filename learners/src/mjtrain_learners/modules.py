"""What was learned, as modules of torch by name: into all ranks, and out of a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from mjtrain.learning import Collectives, RequestError


@torch.no_grad()
def broadcast_modules(modules: Mapping[str, nn.Module], collectives: Collectives) -> None:
    """Give all ranks the parameters and buffers of rank 0; every rank must call it."""
    with collectives.waiting():
        for module in modules.values():
            for tensor in module.state_dict().values():
                dist.broadcast(tensor, 0)


def load_modules(modules: Mapping[str, nn.Module], content: Mapping[str, Any], path: Path) -> None:
    """Take parameters and buffers from a checkpoint; nothing changes if they do not fit.

    Args:
        modules: By their names in the checkpoint.
        content: The checkpoint.
        path: Where it comes from, for messages.

    Raises:
        RequestError: They do not fit; the message names the first tensor that differs.
    """
    for part, module in modules.items():
        if part not in content:
            raise RequestError(f"checkpoint {path}: has no {part}, which this run has")
        theirs = {name: tuple(value.shape) for name, value in content[part].items()}
        ours = {name: tuple(value.shape) for name, value in module.state_dict().items()}
        for name in [*ours, *theirs]:
            if theirs.get(name) != ours.get(name):
                raise RequestError(
                    f"checkpoint {path}: does not fit the networks of this run: {part} {name} has shape "
                    f"{theirs.get(name)} in the checkpoint and {ours.get(name)} here"
                )
    for part, module in modules.items():
        module.load_state_dict(content[part])
