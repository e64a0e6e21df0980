"""What every rank of a job measures, and what the measurements mean."""

import contextlib
import socket
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjtrain.launcher.failure import final_message, summarise
from mjtrain.runtime import heartbeat
from mjtrain.runtime.rank import RankContext
from mjtrain.tools.doctor.finding import Finding, failure, ok, skipped, warning
from mjtrain.tools.doctor.folder import PREFIX, nearest_existing

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
    from mjtrain.tools.doctor import measure  # imports torch

    heartbeat.beat("describe", warming_up=True)
    ranks = measure.gather(context, measure.describe_rank(context, socket.gethostname()))
    found: dict[str, Any] = {"ranks": ranks, "reports": measure.gather(context, task.report)}
    if not context.is_distributed:
        return found
    heartbeat.beat("all-reduce", warming_up=True)
    found["all_reduce"] = measure.gather(context, measure.measure_all_reduce(context))
    heartbeat.beat("links", warming_up=True)
    peers = [rank["rank"] for rank in ranks if rank["local_rank"] == 0 and rank["node_rank"] != 0]
    found["links"] = measure.measure_links(context, peers)
    heartbeat.beat("clocks", warming_up=True)
    found["clocks"] = measure.gather(context, measure.read_clock())
    heartbeat.beat("log root", warming_up=True)
    if peers and all(measure.gather(context, task.can_write)):
        found["seen"] = _look_at_shared_folder(context, task, ranks)
    return found


def _look_at_shared_folder(context: RankContext, task: RankTask, ranks: list[dict[str, Any]]) -> list[list[int]]:
    """Return, by rank, the nodes whose files it sees; every rank must call this."""
    from mjtrain.tools.doctor import measure

    mine = (uuid.uuid4().hex, str(nearest_existing(Path(task.log_root))))
    session, place = measure.gather(context, mine)[0]  # the others look where rank 0 would write
    folder = Path(place)
    own = folder / f"{PREFIX}{session}-{context.node_rank}"
    nodes = {rank["node_rank"] for rank in ranks}
    try:
        if context.local_rank == 0:
            with contextlib.suppress(OSError):  # the others do not see it then
                own.touch()
        measure.gather(context, None)
        deadline_s = time.monotonic() + _VISIBLE_S
        seen: list[int] = []
        while len(seen) < len(nodes) and time.monotonic() < deadline_s:
            seen = _list_nodes(folder, session)
            time.sleep(0.1)
        return measure.gather(context, seen)  # nobody deletes before all have looked
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


_SLOW_LATENCY_S = 0.01
_SLOW_BYTES_PER_S = 30e6
_CLOCK_S = 2.0

_NETWORK_ADVICE = (
    "put the ranks' traffic on a faster network (--interface NAME), or hosts into one rack or zone; "
    "every mini-batch waits for an all-reduce"
)


def judge_ranks(found: dict[str, Any], *, backend: str | None, large_bytes: int) -> list[Finding]:
    """Turn what `ranks.check_ranks` returned into findings."""
    ranks = found["ranks"]
    findings = [_describe(ranks, backend), *_compare_torch(ranks)]
    if len(ranks) == 1:
        return [*findings, skipped("all-reduce", "one rank")]
    findings.append(_judge_all_reduce(found["all_reduce"], ranks, large_bytes))
    findings += [_judge_link(ranks[rank], times, large_bytes) for rank, times in found["links"].items()]
    findings += _judge_clocks(found["clocks"], ranks)
    if "seen" in found:
        findings += _judge_folder(found["seen"], ranks)
    return findings


def _describe(ranks: list[dict[str, Any]], backend: str | None) -> Finding:
    by_host = defaultdict(list)
    for rank in ranks:
        by_host[rank["host"]].append(rank)
    hosts = [f"{host}: {len(there)} on {there[0]['device'].partition(':')[0]}" for host, there in by_host.items()]
    over = f", over {backend}" if backend is not None else ""
    return ok("ranks", f"{len(ranks)} started{over} ({'; '.join(hosts)})")


def _compare_torch(ranks: list[dict[str, Any]]) -> list[Finding]:
    """Compare what was imported, which need not be what is installed."""
    first = ranks[0]
    advice = f"have every rank import torch {first['torch']} for CUDA {first['cuda']}: look at PYTHONPATH on that host"
    return [
        failure("packages", f"rank {rank['rank']} imports torch {rank['torch']}, rank 0 {first['torch']}", advice).at(
            rank["host"]
        )
        for rank in ranks
        if (rank["torch"], rank["cuda"]) != (first["torch"], first["cuda"])
    ]


def _judge_all_reduce(times: list[dict[str, float]], ranks: list[dict[str, Any]], large_bytes: int) -> Finding:
    latency_s, large_s = (max(one[name] for one in times) for name in ("latency_s", "large_s"))
    speed = large_bytes / large_s
    interfaces = dict.fromkeys(f"{rank['interface'] or 'the choice of NCCL'}" for rank in ranks)
    figure = (
        f"{_show_s(latency_s)} for a number, {_show_s(large_s)} for {large_bytes / 1e6:.1f} MB "
        f"({speed / 1e6:,.0f} MB/s), over {', '.join(interfaces)}"
    )
    if latency_s > _SLOW_LATENCY_S or speed < _SLOW_BYTES_PER_S:
        return warning("all-reduce", figure, _NETWORK_ADVICE)
    return ok("all-reduce", figure)


def _judge_link(rank: dict[str, Any], times: dict[str, float], large_bytes: int) -> Finding:
    """Judge the way from rank 0 to a host and back."""
    speed = 2 * large_bytes / times["large_s"]
    figure = (
        f"{_show_s(times['latency_s'])} to rank 0 and back, {speed / 1e6:,.0f} MB/s, "
        f"over {rank['interface'] or 'the choice of NCCL'}"
    )
    if times["latency_s"] > 2 * _SLOW_LATENCY_S or speed < _SLOW_BYTES_PER_S:
        advice = f"look at the cable, the switch and the route of {rank['host']} (`ping`, `ip route`, `ethtool`)"
        return warning("link", figure, advice).at(rank["host"])
    return ok("link", figure).at(rank["host"])


def _judge_clocks(clocks: list[float], ranks: list[dict[str, Any]]) -> list[Finding]:
    firsts = {rank["host"]: clocks[rank["rank"]] for rank in reversed(ranks)}
    if len(firsts) == 1:
        return []
    first_host = ranks[0]["host"]
    findings = []
    for host, clock in reversed(firsts.items()):
        ahead_s = clock - firsts[first_host]
        if abs(ahead_s) > _CLOCK_S:
            figure = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} {first_host}"
            advice = (
                f"set the clock of {host} by NTP (`timedatectl set-ntp true`, `chronyc makestep`): storage refuses "
                "requests from the past, and the newest file is told by its time"
            )
            findings.append(warning("clock", figure, advice).at(host))
    largest = max(firsts.values()) - min(firsts.values())
    return findings or [ok("clock", f"{largest:.3f} s between hosts at most")]


def _judge_folder(seen: list[list[int]], ranks: list[dict[str, Any]]) -> list[Finding]:
    """Look whether all hosts see the files of all hosts in the log root."""
    names = {rank["node_rank"]: rank["host"] for rank in ranks}
    findings = []
    for rank in ranks:
        missing = [name for node, name in names.items() if node not in seen[rank["rank"]]]
        if rank["local_rank"] == 0 and missing:
            figure = f"files of {', '.join(missing)} are not seen in the log root"
            advice = (
                "put --log-root on a file system that all hosts share, or give --checkpoint-url: otherwise a job "
                "whose rank 0 starts on another host (torchrun's c10d, Slurm) finds no checkpoint"
            )
            findings.append(warning("shared folder", figure, advice).at(rank["host"]))
    return findings or [ok("shared folder", f"all {len(names)} hosts see the same log root")]


def _show_s(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.2f} ms"


_ADVICE = (
    ("Unable to find address for", "give --interface one that this host has, or unset GLOO_SOCKET_IFNAME"),
    ("no such interface", "give --interface one that the host has"),
    ("Address already in use", "set MASTER_PORT to a free port on every host"),
    ("cannot be reached", "open the port between the hosts in the firewall, and look whether MASTER_ADDR is right"),
    ("did not connect", "look at what doctor says on the hosts that are missing, and at the firewall between them"),
    ("ncclUnhandledCudaError", "set NCCL_DEBUG=WARN and try again: the driver and NCCL do not fit"),
    ("ncclSystemError", "set NCCL_DEBUG=WARN and try again: the interface (--interface) or /dev/shm"),
    ("NCCL", "set NCCL_DEBUG=WARN and try again; --backend gloo works without NCCL"),
    ("SIGKILL", "it may have been killed by the kernel's OOM killer: look at dmesg and at the limit of the container"),
    ("no progress", "ranks started, and then hung: look at the network between the hosts, and at dmesg for the GPUs"),
    ("wait timeout", "ranks started, and could not reach each other: open all ports between the hosts in the firewall"),
    ("imed out", "ranks started, and could not reach each other: open all ports between the hosts in the firewall"),
    ("onnect", "open all ports between the hosts in the firewall, or give another --interface"),
    ("has no visible GPU", "use hosts of one kind, or --gpu-ids None"),
    ("asks for", "give every node the same command"),
    ("start the same number on every node", "start the same number of ranks on every node"),
)
"""Part of what a message says, and what helps; the first that fits."""


def explain(error: BaseException) -> Finding:
    """Turn what starting the ranks raised into a finding."""
    message = final_message(error)
    blocks = [line.removeprefix("FAILED: ") for line in message.splitlines() if line.startswith("FAILED: ")]
    figure = blocks[0] if blocks else summarise(error)  # a block says which rank, and on which host
    advice = next((advice for part, advice in _ADVICE if part in f"{figure}\n{message}"), "")
    return failure("ranks", figure[:300], advice or "docs/reliability.md says what the message means")
