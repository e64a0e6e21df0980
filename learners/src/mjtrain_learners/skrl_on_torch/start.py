"""The import of skrl where something else has started the ranks."""

import logging
import os

from mjtrain.learning import RankContext

_HIDDEN = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "JAX_WORLD_SIZE")


def start_skrl(context: RankContext) -> None:
    """Import skrl, and tell it which rank this is.

    With these variables skrl would start a process group over NCCL when it is imported, and one of JAX where its own
    launcher has started the ranks. They have theirs already, over any backend.

    Args:
        context: This rank. With several ranks, the process group must be up.
    """
    hidden = {name: os.environ.pop(name) for name in _HIDDEN if name in os.environ}
    try:
        import skrl
    finally:
        os.environ.update(hidden)
    skrl.logger.setLevel(logging.WARNING)
    torch: object = skrl.config.torch
    vars(torch).update(
        _rank=context.rank,
        _local_rank=context.local_rank,
        _world_size=context.world_size,
        _is_distributed=context.is_distributed,
        _device=context.device,
    )
