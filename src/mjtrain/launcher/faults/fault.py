"""A fault that is asked for: what, where and when; pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from mjtrain.runtime.errors import RequestError, suggest

Kind = Literal[
    "sigkill",
    "sigsegv",
    "sigstop",
    "raise",
    "hang",
    "exit",
    "oom",
    "nan",
    "slow",
    "disk-full",
    "network",
]
"""What happens, see `injector.FAULTS`."""

EXAMPLE = "rank=1,phase=rollout,iteration=20,kind=sigkill"

EVERY_RANK = "all"

_NUMBERS = {"iteration": 1, "step": 1, "times": 1, "status": 0}
"""Keys whose values are whole numbers, and the least of each."""

_BELONGS_TO = {"seconds": "slow", "status": "exit"}
"""Keys that only one kind has."""


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
        words |= {name: f"{getattr(self, name):g}" for name, kind in _BELONGS_TO.items() if kind == self.kind}
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


PLACES = {"nan": ("rollout", "update"), "disk-full": ("save",)}
"""Kinds that happen in certain phases of a training, and in nothing else."""


def find_launch_problems(
    faults: tuple[Fault, ...], *, world_size: int, supervised: bool, by_network: bool
) -> Iterator[str]:
    """Yield why faults cannot happen to a job, whatever it does.

    Args:
        by_network: Whether the ranks talk over network connections, which gloo does, and NCCL between hosts.
    """
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
