"""What the ranks measure together: collectives, links, clocks and a shared folder. Every rank must call all of it."""

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mjtrain.learning.collectives import Collectives
from mjtrain.runtime import heartbeat
from mjtrain.runtime.machine import nearest_existing
from mjtrain.runtime.rank import RankContext
from mjtrain.tools.doctor.log_root import PREFIX
from mjtrain.tools.doctor.ranks import LARGE_BYTES

_NUM_SMALL, _NUM_LARGE = 10, 3
"""How often a small and a large message are sent."""

_VISIBLE_S = 5.0
"""Time that a shared file system may take until another host sees a new file."""


def measure_ranks(
    context: RankContext, log_root: str, can_write: bool, report: dict[str, Any] | None
) -> dict[str, Any]:
    """Measure all of it; arguments and result as those of `ranks.check_ranks`."""
    _begin("describe")
    ranks = gather(context, _describe_rank(context))
    found = {"ranks": ranks, "reports": gather(context, report if context.local_rank == 0 else None)}
    if not context.is_distributed:
        return found
    _begin("all-reduce")
    found["all_reduce"] = gather(context, _measure(context, dist.all_reduce))
    _begin("links")
    peers = [rank["rank"] for rank in ranks if rank["local_rank"] == 0 and rank["node_rank"] != 0]
    found["links"] = {peer: _measure(context, partial(_bounce, context, peer)) for peer in peers}
    dist.barrier()
    _begin("clocks")
    dist.barrier()  # the first has connected all, if that was still to be done
    found["clocks"] = gather(context, time.time())
    _begin("log root")
    if peers and all(gather(context, can_write)):
        found["seen"] = _look_at_shared_folder(context, log_root, len({rank["node_rank"] for rank in ranks}))
    return found


def _begin(phase: str) -> None:
    heartbeat.beat(phase, warming_up=True)


def gather(context: RankContext, value: Any) -> list[Any]:
    """Return the value of every rank, by rank; it travels as JSON, and nothing is unpickled.

    Raises:
        ValueError: What a rank sent is not JSON.
    """
    collectives = Collectives(context.device)
    sent = collectives.gather_bytes(json.dumps(value).encode(), context)
    everything = json.dumps([json.loads(one) for one in sent]).encode() if context.is_main else b""
    return json.loads(collectives.broadcast_bytes(everything, context))


def _describe_rank(context: RankContext) -> dict[str, Any]:
    """Return where this rank runs, and with which torch; its device is used once."""
    if float(torch.ones(4, device=context.device).sum()) != 4.0:
        raise RuntimeError(f"{context.device} adds up four ones to something else")
    library = "GLOO" if not dist.is_initialized() or dist.get_backend() == "gloo" else "NCCL"
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    interface = os.environ.get(f"{library}_SOCKET_IFNAME")
    return {**asdict(context), **versions, "host": socket.gethostname(), "interface": interface}


def _measure(context: RankContext, action: Callable[[torch.Tensor], Any]) -> dict[str, float]:
    """Time an action with one number (`latency_s`) and with `LARGE_BYTES` (`large_s`): the fastest of several, in s."""
    times = {}
    for name, size, repeats in (("latency_s", 1, _NUM_SMALL), ("large_s", LARGE_BYTES // 4, _NUM_LARGE)):
        values = torch.zeros(size, device=context.device)
        times[name] = min(_time(action, values) for _ in range(repeats))
    return times


def _time(action: Callable[[torch.Tensor], Any], values: torch.Tensor) -> float:
    values[0].item()  # waits for a GPU
    begin_s = time.perf_counter()
    action(values)
    values[0].item()
    return time.perf_counter() - begin_s


def _bounce(context: RankContext, peer: int, ball: torch.Tensor) -> None:
    """Have a rank send back what rank 0 sends; other ranks do nothing."""
    if context.is_main:
        dist.send(ball, peer)
        dist.recv(ball, peer)
    elif context.rank == peer:
        dist.recv(ball, 0)
        dist.send(ball, 0)


def _look_at_shared_folder(context: RankContext, log_root: str, num_nodes: int) -> list[list[int]]:
    """Return, by rank, the nodes whose files it sees."""
    mine = (uuid.uuid4().hex, str(nearest_existing(Path(log_root))))
    session, place = gather(context, mine)[0]  # the others look where rank 0 would write
    folder, prefix = Path(place), f"{PREFIX}{session}-"
    own = folder / f"{prefix}{context.node_rank}"
    try:
        if context.local_rank == 0:
            with contextlib.suppress(OSError):  # the others do not see it then
                own.touch()
        dist.barrier()
        deadline_s = time.monotonic() + _VISIBLE_S
        seen: list[int] = []
        while len(seen) < num_nodes and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                names = [path.name for path in folder.iterdir()]
                seen = sorted(int(name.removeprefix(prefix)) for name in names if name.startswith(prefix))
            time.sleep(0.1)
        return gather(context, seen)  # nobody deletes before all have looked
    finally:
        if context.local_rank == 0:
            with contextlib.suppress(OSError):
                own.unlink(missing_ok=True)
