"""Faults that happen as heartbeats begin a phase: the only seam between them and the rest of mjtrain.

All that they do to this process is real: no function is replaced by another.
"""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mjtrain.launcher.faults.fault import Fault
from mjtrain.runtime import files, heartbeat
from mjtrain.runtime.event_log import read_lines, write_event
from mjtrain.runtime.heartbeat import Heartbeat
from mjtrain.runtime.rank import RankContext

_MEGABYTE = 1 << 20
_SPARE_MEMORY = 256 * _MEGABYTE
"""How much more address space a rank gets before an allocation fails."""


class InjectedError(RuntimeError):
    """The exception of kind=raise."""


@dataclass(kw_only=True)
class Place:
    """Where a fault happens."""

    device: str
    """Torch device of the rank."""

    run_dir: Path | None
    """Where the run of a training lives."""

    iteration: int | None = None
    env: Any = None
    """Its environments: `mjtrain.env.env.Env`, or an external one."""

    learner: Any = None
    """What learns in them; its `policy_weights()` returns the weights of the networks, not copies of them."""

    checkpoint: Callable[[int], Path] | None = None
    """Returns the file of an iteration's checkpoint."""


def _raise(_fault: Fault, _place: Place) -> NoReturn:
    raise InjectedError("as asked for by --inject-fault")


def _hang(_fault: Fault, _place: Place) -> NoReturn:
    """Wait in native code for a mutex that this very thread holds. Other threads of Python run on.

    Signal handlers that were set in Python do not run, as this thread does not return to Python.
    """
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)  # zeros are PTHREAD_MUTEX_INITIALIZER
    while True:
        libc.pthread_mutex_lock(mutex)


def _oom(_fault: Fault, place: Place) -> NoReturn:
    """Have an allocation of torch fail, without taking memory from other processes.

    On the CPU, this process may have a little more address space than it has, and allocates until torch cannot. On a
    GPU, it asks for more than the GPU has in all.
    """
    import torch

    if place.device.startswith("cuda"):
        total = torch.cuda.get_device_properties(place.device).total_memory
        torch.empty(2 * total, dtype=torch.uint8, device=place.device)
        raise AssertionError("a GPU gave more memory than it has")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = used + _SPARE_MEMORY
    hoard: list[Any] = []
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        while True:
            hoard.append(torch.ones(64 * _MEGABYTE, dtype=torch.uint8))
    finally:
        hoard.clear()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _nan(fault: Fault, place: Place) -> None:
    """In a rollout, give the first world of this rank a velocity that is not a number; else, a weight of the critic."""
    import torch

    assert place.env is not None
    assert place.learner is not None
    if fault.phase == "rollout":
        worlds = torch.arange(place.env.num_envs, device=place.env.device) == 0
        place.env.engine.set_qvel(worlds, torch.full_like(place.env.state.qvel, torch.nan))
        return
    with torch.no_grad():
        _find_weights(place.learner).view(-1)[0] = torch.nan
    if _find_weights(place.learner).isfinite().all():
        raise RuntimeError(f"--inject-fault {fault}: the networks of this learner cannot be changed from outside")


def _find_weights(learner: Any) -> Any:
    """Return the first weights of the critic, or else of any network, as the learner holds them."""
    weights = [(name, tensor) for name, tensor in _find_tensors(learner.policy_weights()) if tensor.ndim > 1]
    of_critic = [tensor for name, tensor in weights if name.startswith(("critic", "value"))]
    return of_critic[0] if of_critic else weights[0][1]


def _find_tensors(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the floating-point tensors of nested dictionaries by their paths."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _find_tensors(item, f"{name}.{key}".lstrip("."))
    elif getattr(value, "is_floating_point", lambda: False)():
        yield name, value


def _disk_full(_fault: Fault, place: Place) -> None:
    """Have the kernel refuse the bytes of this iteration's checkpoint with ENOSPC: it goes to /dev/full."""
    assert place.checkpoint is not None
    assert place.iteration is not None
    files.full.add(place.checkpoint(place.iteration))


def _network(_fault: Fault, _place: Place) -> None:
    """Shut down all connections of this process that use the network: those to other ranks, and any others."""
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it is closed, no socket, or not connected
            if not str(path.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername():
                    connection.shutdown(socket.SHUT_RDWR)


FAULTS: dict[str, Callable[[Fault, Place], object]] = {
    "sigkill": lambda *_: os.kill(os.getpid(), signal.SIGKILL),
    "sigsegv": lambda *_: ctypes.string_at(0),
    # To this thread: another one may take what is sent to the process, and this one would run on for a few lines.
    "sigstop": lambda *_: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP),
    "raise": _raise,
    "hang": _hang,
    "exit": lambda fault, _: os._exit(fault.status),  # without a word: no exception, no handler, no flush
    "oom": _oom,
    "nan": _nan,
    "slow": lambda fault, _: time.sleep(fault.seconds),
    "disk-full": _disk_full,
    "network": _network,
}
"""What the kinds do, by their names."""

LASTING = {"slow"}
"""Kinds that happen again each time the phase begins, from the given iteration on."""


EVENT = "fault"
"""Event in metrics.jsonl for each fault that was injected."""


def make_heartbeat(
    faults: tuple[Fault, ...], context: RankContext, run_dir: str | None, announce: Callable[[str], None]
) -> Heartbeat:
    """Return the heartbeat of a rank: a plain one if no fault is to happen to it."""
    mine = [fault for fault in faults if fault.rank in (None, context.rank)]
    if not mine:
        return Heartbeat()
    happened = _count_happened(run_dir, context)
    due = [fault for fault in mine if happened(fault) < fault.times]
    return Injector(due, context, run_dir, announce) if due else Heartbeat()


def register_targets(env: Any, learner: Any, checkpoint: Callable[[int], Path]) -> None:
    """Show the parts of a training to the faults that change them, see `Place`."""
    if isinstance(heartbeat.current, Injector):
        place = heartbeat.current.place
        place.env, place.learner, place.checkpoint = env, learner, checkpoint


def _count_happened(run_dir: str | None, context: RankContext) -> Callable[[Fault], int]:
    """Return how many times a fault has happened to this rank, by the record of the run, or else by its starts."""
    if run_dir is None:
        return lambda _: context.restarts
    counts: Counter[str] = Counter()
    with contextlib.suppress(OSError):
        for row in read_lines(Path(run_dir)):
            if row.get("event") == EVENT and row.get("rank") == context.rank:
                counts[str(row.get("fault"))] += 1
    return lambda fault: counts[str(fault)]


class Injector(Heartbeat):
    """A heartbeat that has faults happen at their place, each of them once at most."""

    def __init__(
        self, faults: list[Fault], context: RankContext, run_dir: str | None, announce: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.place = Place(device=context.device, run_dir=None if run_dir is None else Path(run_dir))
        self._rank = context.rank
        self._announce = announce
        self._faults = faults
        self._lasting: list[Fault] = []
        self._begun: Counter[str] = Counter()
        self._step = 0

    def begin(self, phase: str, *, warming_up: bool = False, iteration: int | None = None) -> None:
        """Begin a phase, and have happen what is due as it begins."""
        super().begin(phase, warming_up=warming_up, iteration=iteration)
        self._begun[phase] += 1
        self._step = 0
        self._strike()
        for fault in self._lasting:
            if fault.phase == phase:
                FAULTS[fault.kind](fault, self.place)

    def count(self) -> None:
        """Make progress, and have happen what is due after it."""
        super().count()
        self._step += 1
        self._strike()

    def _strike(self) -> None:
        for fault in [fault for fault in self._faults if self._is_due(fault)]:
            self._faults.remove(fault)
            self._record(fault)
            if fault.kind in LASTING:
                self._lasting.append(fault)
            else:
                FAULTS[fault.kind](fault, self.place)

    def _is_due(self, fault: Fault) -> bool:
        if fault.phase != self.phase or (fault.step or 0) != self._step:
            return False
        now = self._begun[self.phase] if self.iteration is None else self.iteration
        return fault.iteration is None or fault.iteration == now or (fault.kind in LASTING and fault.iteration <= now)

    def _record(self, fault: Fault) -> None:
        """Say so before it happens, because nothing may run afterwards."""
        self.injected.append(str(fault))
        self.place.iteration = self.iteration
        self._announce(str(fault))
        if self.place.run_dir is not None:
            where = {"rank": self._rank, "phase": self.phase, "iteration": self.iteration, "kind": fault.kind}
            with contextlib.suppress(OSError):  # the disk is full: what was asked for happens all the same
                write_event(self.place.run_dir, EVENT, fault=str(fault), injected=True, **where, time=time.time())
