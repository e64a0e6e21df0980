"""What the ranks measure together: collectives, links and clocks. Every rank must call each of these."""

import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist

from mjtrain.learning.collectives import Collectives
from mjtrain.runtime.rank import RankContext

LARGE_BYTES = 4 << 20
"""About the gradients of networks with a million parameters."""

_NUM_SMALL = 10
_LARGE_S, _MAX_LARGE = 1.0, 10
_NUM_PINGS = 5


def measure_all_reduce(context: RankContext) -> dict[str, float]:
    """Time sums over all ranks.

    Returns:
        `latency_s` of one number and `large_s` of `LARGE_BYTES`: the fastest of several on this rank, in seconds.
    """
    small = torch.zeros(1, device=context.device)
    latency_s = min(_time_all_reduce(small) for _ in range(_NUM_SMALL))
    large = torch.zeros(LARGE_BYTES // 4, device=context.device)
    first_s = torch.tensor([_time_all_reduce(large)], device=context.device)
    dist.all_reduce(first_s, op=dist.ReduceOp.MAX)  # so that all ranks repeat it as often
    repeats = min(_MAX_LARGE, max(1, int(_LARGE_S / max(float(first_s), 1e-6))))
    return {"latency_s": latency_s, "large_s": min(_time_all_reduce(large) for _ in range(repeats))}


def _time_all_reduce(values: torch.Tensor) -> float:
    _synchronise(values)
    begin_s = time.perf_counter()
    dist.all_reduce(values)
    _synchronise(values)
    return time.perf_counter() - begin_s


def measure_links(context: RankContext, peers: list[int]) -> dict[int, dict[str, float]]:
    """Time messages from rank 0 to other ranks and back.

    Returns:
        On rank 0, by rank: `latency_s` of one number and `large_s` of `LARGE_BYTES`, there and back, the fastest of
        several in seconds. On other ranks nothing of use.
    """
    small = torch.zeros(1, device=context.device)
    large = torch.zeros(LARGE_BYTES // 4, device=context.device)
    found = {
        peer: {
            "latency_s": min(_time_ball(context, peer, small) for _ in range(_NUM_PINGS)),
            "large_s": min(_time_ball(context, peer, large) for _ in range(2)),
        }
        for peer in peers
    }
    dist.barrier()
    return found


def _time_ball(context: RankContext, peer: int, ball: torch.Tensor) -> float:
    """Have a rank send back what rank 0 sends; other ranks do nothing."""
    begin_s = time.perf_counter()
    if context.is_main:
        dist.send(ball, peer)
        dist.recv(ball, peer)
        _synchronise(ball)
    elif context.rank == peer:
        dist.recv(ball, 0)
        dist.send(ball, 0)
    return time.perf_counter() - begin_s


def read_clock() -> float:
    """Return the time of this host's clock, in seconds since the epoch, at about the same moment on every rank."""
    dist.barrier()
    dist.barrier()  # the first may have had to connect
    return time.time()


def gather(context: RankContext, value: Any) -> list[Any]:
    """Return the value of every rank, by rank; it travels as JSON, and nothing is unpickled.

    Raises:
        ValueError: What a rank sent is not JSON.
    """
    collectives = Collectives(context.device)
    sent = collectives.gather_bytes(json.dumps(value).encode(), context)
    everything = json.dumps([json.loads(one) for one in sent]).encode() if context.is_main else b""
    return json.loads(collectives.broadcast_bytes(everything, context))


def describe_rank(context: RankContext, host: str) -> dict[str, Any]:
    """Return where this rank runs, and with which torch; its device is used once."""
    if float(torch.ones(4, device=context.device).sum()) != 4.0:
        raise RuntimeError(f"{context.device} adds up four ones to something else")
    return {
        "rank": context.rank,
        "host": host,
        "node_rank": context.node_rank,
        "local_rank": context.local_rank,
        "device": context.device,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "interface": os.environ.get("GLOO_SOCKET_IFNAME" if _uses_gloo() else "NCCL_SOCKET_IFNAME"),
    }


def _uses_gloo() -> bool:
    return not dist.is_initialized() or dist.get_backend() == "gloo"


def _synchronise(values: torch.Tensor) -> None:
    if values.is_cuda:
        torch.cuda.synchronize(values.device)
