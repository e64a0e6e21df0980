"""What every rank of the job does: it is started as a training's ranks are, and they measure each other."""

import contextlib
import socket
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjtrain import heartbeat
from mjtrain.doctor.folder import PREFIX, nearest_existing
from mjtrain.rank import RankContext

_VISIBLE_S = 5.0
"""Time that a shared file system may take until another host sees a new file."""


@dataclass(frozen=True, kw_only=True)
class RankTask:
    """What a rank has to know."""

    log_root: str
    """Absolute path of the folder below which runs live."""

    can_write: bool
    """Whether that folder can be written, as far as the process knows that starts this rank."""

    report: dict[str, Any] | None = None
    """What was found on this host; None where the process that leads knows of all hosts."""


def check_ranks(context: RankContext, task: RankTask) -> dict[str, Any]:
    """Measure, on every rank.

    Returns:
        `ranks`, what each is; with several, `all_reduce` and `clocks` by rank, and `links` in seconds by rank; `seen`,
        by rank, the hosts whose files it sees in the log root, or None where that was not looked at; `reports`, by
        rank.
    """
    from mjtrain.doctor import measure  # imports torch

    heartbeat.beat("describe", warming_up=True)
    ranks = measure.gather(measure.describe_rank(context, socket.gethostname()))
    found: dict[str, Any] = {"ranks": ranks, "reports": measure.gather(task.report)}
    if not context.is_distributed:
        return found
    heartbeat.beat("all-reduce", warming_up=True)
    found["all_reduce"] = measure.gather(measure.measure_all_reduce(context))
    heartbeat.beat("links", warming_up=True)
    peers = [rank["rank"] for rank in ranks if rank["local_rank"] == 0 and rank["node_rank"] != 0]
    found["links"] = measure.measure_links(context, peers)
    heartbeat.beat("clocks", warming_up=True)
    found["clocks"] = measure.gather(measure.read_clock())
    heartbeat.beat("log root", warming_up=True)
    if peers and all(measure.gather(task.can_write)):
        found["seen"] = _look_at_shared_folder(context, task, ranks)
    return found


def _look_at_shared_folder(context: RankContext, task: RankTask, ranks: list[dict[str, Any]]) -> list[list[int]]:
    """Return, by rank, the nodes whose files it sees; every rank must call this."""
    from mjtrain.doctor import measure

    mine = (uuid.uuid4().hex, str(nearest_existing(Path(task.log_root))))
    session, place = measure.gather(mine)[0]  # the others look where rank 0 would write
    folder = Path(place)
    own = folder / f"{PREFIX}{session}-{context.node_rank}"
    nodes = {rank["node_rank"] for rank in ranks}
    try:
        if context.local_rank == 0:
            with contextlib.suppress(OSError):  # the others do not see it then
                own.touch()
        measure.gather(None)
        deadline_s = time.monotonic() + _VISIBLE_S
        seen: list[int] = []
        while len(seen) < len(nodes) and time.monotonic() < deadline_s:
            seen = _list_nodes(folder, session)
            time.sleep(0.1)
        return measure.gather(seen)  # nobody deletes before all have looked
    finally:
        if context.local_rank == 0:
            with contextlib.suppress(OSError):
                own.unlink(missing_ok=True)


def _list_nodes(folder: Path, session: str) -> list[int]:
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    return sorted(int(name.rpartition("-")[2]) for name in names if name.startswith(f"{PREFIX}{session}-"))
