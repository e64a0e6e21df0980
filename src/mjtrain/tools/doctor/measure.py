"""What the ranks measure together: collectives, links, clocks and a shared folder. Every rank must call all of it."""

import contextlib
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
from mjtrain.tools.doctor.ranks import LARGE_BYTES
from mjtrain.tools.doctor.slow_checks import PREFIX

_VISIBLE_S = 5.0
"""Time that a shared file system may take until another host sees a new file."""


def measure_ranks(
    context: RankContext, log_root: str, can_write: bool, report: dict[str, Any] | None
) -> dict[str, Any]:
    """Measure all of it.

    Args:
        log_root: Absolute path of the folder below which runs live.
        can_write: Whether it can be written, as far as the process knows that starts this rank.
        report: What was found on this host; None if the process that leads knows of all hosts.

    Returns:
        `ranks`, what each is, with its `report`; with several, `all_reduce` and `clocks` by rank, and `links` by rank;
        `seen`, by rank, the hosts whose files it sees in the log root, missing if that was not looked at.
    """
    begin = partial(heartbeat.beat, warming_up=True)
    gather = partial(Collectives(context.device).gather_plain, context=context)
    begin("describe")
    ranks = gather({**_describe_rank(context), "report": report if context.local_rank == 0 else None})
    found: dict[str, Any] = {"ranks": ranks}
    if not context.is_distributed:
        return found
    begin("all-reduce")
    found["all_reduce"] = gather(_measure(context, dist.all_reduce))
    begin("links")
    peers = [rank["rank"] for rank in ranks if rank["local_rank"] == 0 and rank["node_rank"] != 0]
    found["links"] = {peer: _measure(context, partial(_bounce, context, peer)) for peer in peers}
    dist.barrier()
    begin("clocks")
    dist.barrier()
    found["clocks"] = gather(time.time())
    begin("log root")
    if peers and all(gather(can_write)):
        session, place = gather((uuid.uuid4().hex, str(nearest_existing(Path(log_root)))))[0]  # where rank 0 writes
        found["seen"] = _look_at_shared_folder(context, Path(place), f"{PREFIX}{session}-", gather)
    return found


def _describe_rank(context: RankContext) -> dict[str, Any]:
    """Return where this rank runs, and with which torch; its device is used once."""
    if float(torch.ones(4, device=context.device).sum()) != 4.0:
        raise RuntimeError(f"{context.device} adds up four ones to something else")
    library = "GLOO" if not dist.is_initialized() or dist.get_backend() == "gloo" else "NCCL"
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    interface = os.environ.get(f"{library}_SOCKET_IFNAME") or "the choice of NCCL"
    return {**asdict(context), **versions, "host": socket.gethostname(), "interface": interface}


def _measure(context: RankContext, action: Callable[[torch.Tensor], Any]) -> dict[str, float]:
    """Time an action with one number (`latency_s`) and with `LARGE_BYTES` (`large_s`): the fastest of several, in s."""
    fastest = {}
    for name, size, repeats in (("latency_s", 1, 10), ("large_s", LARGE_BYTES // 4, 3)):
        values, times_s = torch.zeros(size, device=context.device), []
        for _ in range(repeats):
            values[0].item()  # waits for a GPU
            begin_s = time.perf_counter()
            action(values)
            values[0].item()
            times_s.append(time.perf_counter() - begin_s)
        fastest[name] = min(times_s)
    return fastest


def _bounce(context: RankContext, peer: int, ball: torch.Tensor) -> None:
    """Have a rank send back what rank 0 sends; other ranks do nothing."""
    if context.is_main:
        dist.send(ball, peer)
        dist.recv(ball, peer)
    elif context.rank == peer:
        dist.recv(ball, 0)
        dist.send(ball, 0)


def _look_at_shared_folder(
    context: RankContext, folder: Path, prefix: str, gather: Callable[[Any], list[Any]]
) -> list[list[int]]:
    """Return, by rank, the nodes whose files it sees."""
    own = folder / f"{prefix}{context.node_rank}"
    try:
        if context.local_rank == 0:
            with contextlib.suppress(OSError):  # the others do not see it then
                own.touch()
        num_nodes = len(set(gather(context.node_rank)))
        deadline_s = time.monotonic() + _VISIBLE_S
        seen: list[int] = []
        while len(seen) < num_nodes and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                names = [path.name for path in folder.iterdir()]
                seen = sorted(int(name.removeprefix(prefix)) for name in names if name.startswith(prefix))
            time.sleep(0.1)
        return gather(seen)  # nobody deletes before all have looked
    finally:
        if context.local_rank == 0:
            with contextlib.suppress(OSError):
                own.unlink(missing_ok=True)
