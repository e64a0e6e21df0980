"""Sums over ranks, and how long this rank waits for them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from mjtrain import pulse


class Collectives:
    """What the ranks of a job say to each other while they learn."""

    def __init__(self, device: str | torch.device) -> None:
        self._on_gpu = torch.device(device).type == "cuda"
        self._waited_s = 0.0

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add a tensor up over ranks, in place; every rank gets the same bits."""
        with self.waiting():
            dist.all_reduce(tensor)
        return tensor

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of a with block as waiting for the other ranks."""
        self._finish_queue()
        begin = time.perf_counter()
        try:
            with pulse.waiting():
                yield
                self._finish_queue()
        finally:
            self._waited_s += time.perf_counter() - begin

    def _finish_queue(self) -> None:
        """Let a GPU catch up, where a collective is only queued; an update asks it for numbers as often anyway."""
        if self._on_gpu:
            torch.cuda.current_stream().synchronize()

    def pop_waited_s(self) -> float:
        """Return the time this rank has waited since the last call, in seconds."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s
