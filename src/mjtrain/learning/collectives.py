"""Sums, means and variances over the samples of all ranks, and how long this rank waits for the others."""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from mjtrain.runtime import heartbeat
from mjtrain.runtime.rank import RankContext


class Collectives:
    """Collectives of the ranks of a job while they learn."""

    def __init__(self, device: str | torch.device) -> None:
        self._device = torch.device(device)
        self._on_gpu = self._device.type == "cuda"
        self._waited_s = 0.0

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add a tensor up over ranks, in place; every rank gets the same bits. One rank alone keeps its own."""
        if dist.is_initialized():
            with self.waiting():
                dist.all_reduce(tensor)
        return tensor

    @torch.no_grad()
    def average_gradients(self, parameters: Iterable[torch.Tensor], world_size: int) -> None:
        """Replace the gradients of parameters by their means over ranks, in one collective; every rank must call it."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        means = self.sum(torch.cat([gradient.flatten() for gradient in gradients])) / world_size
        for gradient, mean in zip(gradients, means.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def gather_bytes(self, data: bytes, context: RankContext) -> list[bytes]:
        """Return on rank 0 what every rank gave, by rank, and nothing on the others; every rank must call it."""
        if not context.is_distributed:
            return [data]
        sizes = torch.zeros(context.world_size, dtype=torch.long, device=self._device)
        sizes[context.rank] = len(data)
        lengths = [int(size) for size in self.sum(sizes).tolist()]
        mine = torch.zeros(max(lengths), dtype=torch.uint8, device=self._device)
        mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        gathered = [torch.empty_like(mine) for _ in lengths] if context.is_main else None
        with self.waiting():
            dist.gather(mine, gathered, dst=0)
        rows = [row.cpu().numpy() for row in gathered or []]
        return [row[:length].tobytes() for row, length in zip(rows, lengths, strict=False)]

    def broadcast_bytes(self, data: bytes, context: RankContext) -> bytes:
        """Return what rank 0 gave; every rank must call it."""
        if not context.is_distributed:
            return data
        size = int(self.sum(torch.tensor([len(data) if context.is_main else 0], device=self._device)).item())
        shared = torch.zeros(size, dtype=torch.uint8, device=self._device)
        if size and context.is_main:
            shared.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        with self.waiting():
            dist.broadcast(shared, src=0)
        return shared.cpu().numpy().tobytes()

    def union(self, names: Iterable[str], context: RankContext) -> list[str]:
        """Return the names that any rank has, sorted; every rank must call it."""
        mine = set(names)
        if self.sum(torch.tensor([len(mine)], device=self._device)).item() == 0:  # as in almost every call
            return []
        return sorted({name for names in self.gather_plain(sorted(mine), context) for name in names})

    def gather_plain(self, value: Any, context: RankContext) -> list[Any]:
        """Return the values of all ranks in their order; every rank must call it, and the values must be JSON."""
        sent = self.gather_bytes(json.dumps(value).encode(), context)
        everything = json.dumps([json.loads(one) for one in sent]).encode() if context.is_main else b""
        return json.loads(self.broadcast_bytes(everything, context))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of a with block as waiting for the other ranks; to get that far is progress."""
        heartbeat.beat()
        self._finish_queue()
        begin = time.perf_counter()
        try:
            with heartbeat.waiting():
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


@torch.no_grad()
def update_moments(
    mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor, samples: torch.Tensor, collectives: Collectives
) -> None:
    """Take the samples of all ranks into a running mean and variance, in place; every rank must call it.

    Args:
        mean: Of the samples so far, the same on all ranks. Shape (size,).
        variance: Likewise, of the whole population: divided by the count.
        count: How many samples that were; a scalar.
        samples: This rank's new ones. Shape (num_samples, size).
    """
    deviations = (samples - mean).double()
    sums = torch.cat([deviations.sum(0), deviations.square().sum(0), deviations.new_tensor([float(samples.shape[0])])])
    collectives.sum(sums)
    size = mean.shape[0]
    new = sums[-1]
    shift, spread = sums[:size] / new, sums[size:-1] / new
    count += new.to(count.dtype)
    rate = new / count
    # With d the mean of the deviations: mean += rate d, var += rate (E[deviation^2] - var - rate d^2).
    variance += (rate * (spread - variance - rate * shift.square())).to(variance.dtype)
    mean += (rate * shift).to(mean.dtype)


@torch.no_grad()
def normalise(samples: torch.Tensor, collectives: Collectives, correction: int = 1) -> torch.Tensor:
    """Shift and scale to mean 0 and standard deviation 1 over the samples of all ranks; every rank must call it.

    Args:
        samples: This rank's, of any shape.
        correction: What the variance's divisor is below the number of samples: 1 as in torch, 0 as in JAX.
    """
    exact = samples.double()
    moments = torch.stack([exact.sum(), exact.square().sum(), exact.new_tensor(float(exact.numel()))])
    total, total_of_squares, count = collectives.sum(moments)
    mean = total / count
    variance = (total_of_squares - count * mean.square()).clamp(min=0.0) / (count - correction)
    return ((exact - mean) / (variance.sqrt() + 1e-8)).to(samples.dtype)
