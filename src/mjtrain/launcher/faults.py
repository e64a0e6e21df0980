"""Faults of --inject-fault: the request, which are impossible, what each does, and a heartbeat that triggers them.

Only the heartbeat connects them with the rest of mjtrain. All that they do to this process is real: no function is
replaced by another.
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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from mjtrain.runtime import files, heartbeat
from mjtrain.runtime.errors import RequestError, suggest
from mjtrain.runtime.event_log import read_lines, write_event
from mjtrain.runtime.heartbeat import Heartbeat
from mjtrain.runtime.rank import RankContext

Kind = Literal["sigkill", "sigsegv", "sigstop", "raise", "hang", "exit", "oom", "nan", "slow", "disk-full", "network"]
"""What happens, see `FAULTS`."""

EXAMPLE = "rank=1,phase=rollout,iteration=20,kind=sigkill"

EVERY_RANK = "all"

_NUMBERS = {"iteration": 1, "step": 1, "times": 1, "status": 0}
"""Keys whose values are whole numbers, and the least of each."""

_BELONGS_TO = {"seconds": "slow", "status": "exit"}
"""Keys that only one kind has."""

PLACES = {"nan": ("rollout", "update"), "disk-full": ("save",)}
"""Kinds that happen in certain phases of a training, and in nothing else."""

_MEGABYTE = 1 << 20

_SPARE_MEMORY = 256 * _MEGABYTE
"""How much more address space a rank gets before an allocation fails."""

LASTING = {"slow"}
"""Kinds that happen again each time the phase begins, from the given iteration on."""

EVENT = "fault"
"""Event in metrics.jsonl for each fault that was injected."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of --inject-fault."""

    kind: Kind
    phase: str
    """The phase in which it happens, as heartbeats name it."""

    rank: int | None = 0
    """The rank to which it happens; None for each of them."""

    iteration: int | None = None
    """The iteration, from 1; in a function of the user's own that names none, how many times the phase has begun. None
    for the first time that the phase begins."""

    step: int | None = None
    """After which heartbeat of the phase: env step of a rollout, or collective of an update. None: as it begins."""

    times: int = 1
    """In how many starts of a job that is started again it happens, at most."""

    seconds: float = 1.0
    """How much longer each of the phases takes; of slow only."""

    status: int = 1
    """With which status the process exits; of exit only."""

    def __str__(self) -> str:
        words = {"rank": EVERY_RANK if self.rank is None else str(self.rank), "phase": self.phase}
        for name in ("iteration", "step"):
            if (value := getattr(self, name)) is not None:
                words[name] = str(value)
        words["kind"] = self.kind
        words |= {name: f"{getattr(self, name):.15g}" for name, kind in _BELONGS_TO.items() if kind == self.kind}
        if self.times != 1:
            words["times"] = str(self.times)
        return ",".join(f"{key}={value}" for key, value in words.items())


def parse_faults(texts: Iterable[str]) -> tuple[Fault, ...]:
    """Read the values of --inject-fault."""
    return tuple(_parse(text) for text in texts)


def _parse(text: str) -> Fault:
    flag = f"--inject-fault {text}"
    values: dict[str, str] = {}
    for word in text.split(","):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not (key and equals and value):
            raise RequestError(f"{flag}: {word.strip() or 'it'} is not KEY=VALUE; give such as {EXAMPLE}")
        if key in values:
            raise RequestError(f"{flag}: {key} is given twice; a second fault is a separate word")
        values[key] = value
    keys = [field.name for field in fields(Fault)]
    for key in values:
        if key not in keys:
            raise RequestError(f"{flag}: unknown key {key}{suggest(key, keys)}")
    for key in ("kind", "phase"):
        if key not in values:
            raise RequestError(f"{flag}: {key} is missing; give such as {EXAMPLE}")
    kind = values["kind"]
    if kind not in get_args(Kind):
        raise RequestError(f"{flag}: unknown kind {kind}{suggest(kind, get_args(Kind))}")
    for key, of in _BELONGS_TO.items():
        if key in values and kind != of:
            raise RequestError(f"{flag}: {key} is of kind={of} only")
    given: dict[str, Any] = {
        key: _whole_number(flag, key, values[key], least) for key, least in _NUMBERS.items() if key in values
    }
    if values.get("rank", "0") == EVERY_RANK:
        given["rank"] = None
    elif "rank" in values:
        given["rank"] = _whole_number(flag, "rank", values["rank"], 0, f", or {EVERY_RANK}")
    if "seconds" in values:
        given["seconds"] = _positive_seconds(flag, values["seconds"])
    return Fault(kind=kind, phase=values["phase"], **given)  # pyright: ignore[reportArgumentType]


def _whole_number(flag: str, key: str, value: str, least: int, otherwise: str = "") -> int:
    most = 255 if key == "status" else float("inf")
    if not value.isdecimal() or not least <= int(value) <= most:
        limits = f"at least {least}" if most == float("inf") else f"{least} to {most}"
        raise RequestError(f"{flag}: {key} must be a whole number, {limits}{otherwise}")
    return int(value)


def _positive_seconds(flag: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise RequestError(f"{flag}: seconds must be a number above 0")
    return number


def find_launch_problems(
    faults: tuple[Fault, ...], *, world_size: int, supervised: bool, by_network: bool
) -> Iterator[str]:
    """Yield why faults cannot happen to a job, whatever it does; `by_network` for gloo, and for NCCL between hosts."""
    for fault in faults:
        flag = f"--inject-fault {fault}"
        if fault.rank is not None and fault.rank >= world_size:
            there = "is rank 0 only" if world_size == 1 else f"are ranks 0 to {world_size - 1}"
            yield f"{flag}: there {there}"
        elif fault.kind == "network" and world_size == 1:
            yield f"{flag}: one rank alone has no connections to others; give --num-workers 2"
        elif fault.kind == "network" and not by_network:
            yield f"{flag}: NCCL uses no network between the GPUs of one host"
        elif fault.kind == "sigstop" and not supervised:
            yield f"{flag}: nothing would notice that this process is stopped; --max-restarts 1 has it supervised"


def find_function_problems(faults: tuple[Fault, ...]) -> Iterator[str]:
    """Yield why faults cannot happen to a function that is launched."""
    for fault in faults:
        if fault.kind in PLACES:
            yield f"--inject-fault {fault}: kind={fault.kind} is of trainings only"


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


def register_targets(env: Any, learner: Any, checkpoint: Callable[[int], Path]) -> None:
    """Show the parts of a training to the faults that change them, see `Place`."""
    if isinstance(heartbeat.current, Injector):
        place = heartbeat.current.place
        place.env, place.learner, place.checkpoint = env, learner, checkpoint


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


def _raise(_fault: Fault, _place: Place) -> NoReturn:
    raise InjectedError("as asked for by --inject-fault")


def _hang(_fault: Fault, _place: Place) -> NoReturn:
    """Wait in native code, where no signal handler of Python runs, for a mutex that this very thread holds."""
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)  # zeros are PTHREAD_MUTEX_INITIALIZER
    while True:
        libc.pthread_mutex_lock(mutex)


def _oom(_fault: Fault, place: Place) -> NoReturn:
    """Have an allocation of torch fail without taking memory from others; on the CPU, by a limit on this process."""
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
