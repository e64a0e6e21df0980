"""What the ranks measure together, what it means, and why ranks did not start."""

import contextlib
import os
import re
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from mjtrain.launcher.failure import final_message
from mjtrain.runtime import heartbeat
from mjtrain.runtime.deferred_imports import torch
from mjtrain.runtime.errors import summarise
from mjtrain.runtime.machine import nearest_existing
from mjtrain.runtime.rank import RankContext
from mjtrain.tools.doctor.finding import Finding, failure, grade, ok, skipped, warning
from mjtrain.tools.doctor.slow_checks import PREFIX

_LARGE_BYTES = 4 << 20
"""About the gradients of networks with a million parameters."""

_SLOW_LATENCY_S = 0.01
_SLOW_BYTES_PER_S = 30e6
_CLOCK_S = 2.0

_VISIBLE_S = 5.0
"""Time that a shared file system may take until another host sees a new file."""

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
    (
        "wait timeout|imed out",
        "ranks started, and cannot reach each other: open all ports between the hosts in the firewall",
    ),
    ("onnect", "open all ports between the hosts in the firewall, or give another --interface"),
    ("has no visible GPU", "use hosts of one kind, or --gpu-ids None"),
    ("asks for|start the same number on every node", "give every node the same command, for the same number of ranks"),
)
"""Part of what a message says, and what helps; the first that fits."""


def measure_ranks(
    context: RankContext, log_root: str, can_write: bool, report: dict[str, Any] | None
) -> dict[str, Any]:
    """Measure collectives, links, clocks and a shared folder; every rank must call it.

    Args:
        log_root: Absolute path of the folder below which runs live.
        can_write: Whether it can be written, as far as the process knows that starts this rank.
        report: What was found on this host; None if the process that leads knows of all hosts.

    Returns:
        `ranks`, what each is, with its `report`; with several, `all_reduce` and `clocks` by rank, and `links` by rank;
        `seen`, by rank, the hosts whose files it sees in the log root, missing if that was not looked at.
    """
    from mjtrain.learning.collectives import Collectives  # imports torch, and the launcher imports this module

    begin = partial(heartbeat.beat, warming_up=True)
    gather = partial(Collectives(context.device).gather_plain, context=context)
    begin("describe")
    ranks = gather({**_describe_rank(context), "report": report if context.local_rank == 0 else None})
    found: dict[str, Any] = {"ranks": ranks}
    if not context.is_distributed:
        return found
    begin("all-reduce")
    found["all_reduce"] = gather(_measure(context, torch.distributed.all_reduce))
    begin("links")
    peers = [rank["rank"] for rank in ranks if rank["local_rank"] == 0 and rank["node_rank"] != 0]
    found["links"] = {peer: _measure(context, partial(_bounce, context, peer)) for peer in peers}
    torch.distributed.barrier()
    begin("clocks")
    torch.distributed.barrier()
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
    library = "GLOO" if not torch.distributed.is_initialized() or torch.distributed.get_backend() == "gloo" else "NCCL"
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    interface = os.environ.get(f"{library}_SOCKET_IFNAME") or "the choice of NCCL"
    return {**asdict(context), **versions, "host": socket.gethostname(), "interface": interface}


def _measure(context: RankContext, action: Callable[["torch.Tensor"], Any]) -> dict[str, float]:
    """Time an action with one number (`latency_s`) and with `_LARGE_BYTES` (`large_s`): the fastest, in s."""
    fastest = {}
    for name, size, repeats in (("latency_s", 1, 10), ("large_s", _LARGE_BYTES // 4, 3)):
        values, times_s = torch.zeros(size, device=context.device), []
        for _ in range(repeats):
            values[0].item()  # waits for a GPU
            begin_s = time.perf_counter()
            action(values)
            values[0].item()
            times_s.append(time.perf_counter() - begin_s)
        fastest[name] = min(times_s)
    return fastest


def _bounce(context: RankContext, peer: int, ball: "torch.Tensor") -> None:
    """Have a rank send back what rank 0 sends; other ranks do nothing."""
    if context.is_main:
        torch.distributed.send(ball, peer)
        torch.distributed.recv(ball, peer)
    elif context.rank == peer:
        torch.distributed.recv(ball, 0)
        torch.distributed.send(ball, 0)


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


def judge_ranks(found: dict[str, Any], *, backend: str | None) -> list[Finding]:
    """Turn what `measure_ranks` returned into findings."""
    ranks = found["ranks"]
    findings = [_describe(ranks, backend), *_compare_torch(ranks)]
    if len(ranks) == 1:
        return [*findings, skipped("all-reduce", "one rank")]
    findings.append(_judge_all_reduce(found["all_reduce"], ranks))
    findings += [_judge_link(ranks[rank], times) for rank, times in found["links"].items()]
    findings += _judge_clocks(found["clocks"], ranks)
    return findings + (_judge_folder(found["seen"], ranks) if "seen" in found else [])


def _describe(ranks: list[dict[str, Any]], backend: str | None) -> Finding:
    counts = Counter((rank["host"], rank["device"].partition(":")[0]) for rank in ranks)
    hosts = "; ".join(f"{host}: {count} on {device}" for (host, device), count in counts.items())
    return ok("ranks", f"{len(ranks)} started{'' if backend is None else f', over {backend}'} ({hosts})")


def _compare_torch(ranks: list[dict[str, Any]]) -> list[Finding]:
    """Compare what was imported, which need not be what is installed."""
    first = ranks[0]
    advice = f"have every rank import torch {first['torch']} for CUDA {first['cuda']}: look at PYTHONPATH on that host"
    others = [rank for rank in ranks if (rank["torch"], rank["cuda"]) != (first["torch"], first["cuda"])]
    figure = "rank {rank} imports torch {torch}, rank 0 " + first["torch"]
    return [failure("packages", figure.format_map(rank), advice).at(rank["host"]) for rank in others]


def _judge_all_reduce(times: list[dict[str, float]], ranks: list[dict[str, Any]]) -> Finding:
    latency_s, large_s = (max(one[name] for one in times) for name in ("latency_s", "large_s"))
    speed = _LARGE_BYTES / large_s
    figure = (
        f"{_show_s(latency_s)} for a number, {_show_s(large_s)} for {_LARGE_BYTES / 1e6:.1f} MB "
        f"({speed / 1e6:,.0f} MB/s), over {', '.join(dict.fromkeys(rank['interface'] for rank in ranks))}"
    )
    advice = (
        "put the ranks' traffic on a faster network (--interface NAME), or hosts into one rack or zone; "
        "every mini-batch waits for an all-reduce"
    )
    return grade("all-reduce", figure, advice, warns=latency_s > _SLOW_LATENCY_S or speed < _SLOW_BYTES_PER_S)


def _judge_link(rank: dict[str, Any], times: dict[str, float]) -> Finding:
    latency_s, speed = times["latency_s"], 2 * _LARGE_BYTES / times["large_s"]
    figure = f"{_show_s(latency_s)} to rank 0 and back, {speed / 1e6:,.0f} MB/s, over {rank['interface']}"
    advice = f"look at the cable, the switch and the route of {rank['host']} (`ping`, `ip route`, `ethtool`)"
    warns = latency_s > 2 * _SLOW_LATENCY_S or speed < _SLOW_BYTES_PER_S
    return grade("link", figure, advice, warns=warns).at(rank["host"])


def _judge_clocks(clocks: list[float], ranks: list[dict[str, Any]]) -> list[Finding]:
    firsts = {rank["host"]: clocks[rank["rank"]] for rank in reversed(ranks)}
    if len(firsts) == 1:
        return []
    first_host, findings = ranks[0]["host"], []
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
    advice = (
        "put --log-root on a file system that all hosts share, or give --checkpoint-url: otherwise a job "
        "whose rank 0 starts on another host (torchrun's c10d, Slurm) finds no checkpoint"
    )
    findings = []
    for rank in ranks:
        missing = [name for node, name in names.items() if node not in seen[rank["rank"]]]
        if rank["local_rank"] == 0 and missing:
            figure = f"files of {', '.join(missing)} are not seen in the log root"
            findings.append(warning("shared folder", figure, advice).at(rank["host"]))
    return findings or [ok("shared folder", f"all {len(names)} hosts see the same log root")]


def _show_s(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.2f} ms"


def explain(error: BaseException) -> Finding:
    """Turn what starting the ranks raised into a finding."""
    message = final_message(error)
    blocks = [line.removeprefix("FAILED: ") for line in message.splitlines() if line.startswith("FAILED: ")]
    figure = blocks[0] if blocks else summarise(error)  # a block says which rank, and on which host
    advice = next((advice for part, advice in _ADVICE if re.search(part, f"{figure}\n{message}")), "")
    return failure("ranks", figure[:300], advice or "docs/reliability.md says what the message means")
