"""Numbers of the whole job."""

import torch
import torch.distributed as dist

from mjtrain import heartbeat
from mjtrain.rank import RankContext


def sum_over_ranks(values: torch.Tensor, context: RankContext) -> torch.Tensor:
    """Add a tensor up over ranks, in place; every rank must call it, and gets the same bits."""
    if context.is_distributed:
        with heartbeat.waiting():
            dist.all_reduce(values)
            values.sum().item()  # on a GPU the collective is only queued, and the wait for the others comes here
    return values
