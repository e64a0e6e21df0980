"""How a job ended: its result, and the cause of a failure for the console, crash/rank_{rank}.txt and the caller."""

import pickle
import re
import signal
import socket
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mjtrain.config.limits import find_type_problems
from mjtrain.launcher.ipc.messages import HostConnection
from mjtrain.runtime.errors import INJECTED, summarise

RULE = "-" * 100

_MAX_TEXT = 1 << 20


class RankFailedError(RuntimeError):
    """A rank ended without an exception that could be handed over, for instance because it was killed."""

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        host: str | None = None,
        signal: int | None = None,
        exit_code: int | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        """Which rank; None where it was a process that starts them."""
        self.host = host
        """Name of the host it ran on."""
        self.signal = signal
        """Number of the signal that killed it; None if none did."""
        self.exit_code = exit_code
        """Status with which it exited; None if it did not."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The one cause of the end of a job."""

    summary: str
    """What happened, in one line: the exception, or how the process ended."""

    detail: str = ""
    """Traceback, or whatever else there is to show; lines."""

    rank: int | None = None
    """Which rank; None where it was a process that starts them."""

    host: str = ""
    phase: str = ""
    """What the rank was doing; empty if not known."""

    pickled_error: bytes = b""
    """The exception; empty if there was none or it could not be pickled."""

    signal: int | None = None
    exit_code: int | None = None
    host_lost: bool = False
    """Whether the host itself is gone, or the connection to it."""

    is_attributed: bool = True
    """Whether the rank is known to be the cause; not where all wait for each other, or where it misses another."""

    is_transient: bool = True
    """Whether a restart can help; not after a wrong request."""

    files: tuple[Path, ...] = ()
    """Logs and crash files that say more."""

    def after_faults(self, faults: Sequence[str]) -> "Failure":
        """Return the same failure of a job in which these faults were injected; marked, so that it is not real."""
        mark = " and ".join(dict.fromkeys(faults))
        return replace(self, summary=f"{self.summary}; {INJECTED}{mark}") if faults else self

    def to_plain(self) -> dict[str, Any]:
        """Return all of it except the exception as plain values, see `from_plain`."""
        plain = asdict(replace(self, pickled_error=b""))
        return {**plain, "pickled_error": "", "files": [str(path) for path in self.files]}

    @classmethod
    def from_plain(cls, plain: dict[str, Any], pickled_error: bytes = b"") -> "Failure":
        """Restore it from what `to_plain` returned, and the exception."""
        return cls(**{**plain, "files": tuple(map(Path, plain["files"])), "pickled_error": pickled_error})

    def describe(self) -> str:
        """Return the block that ends the output on the console."""
        during = f" in phase {self.phase}" if self.phase else ""
        lines = [RULE, f"FAILED: {self.place()}{during}: {self.summary}"]
        if self.detail:
            lines += ["", self.detail.rstrip("\n"), ""]
        lines += [f"see {path}" for path in self.files]
        return "\n".join([*lines, RULE])

    def to_error(self) -> BaseException:
        """Return the exception for the caller: the rank's own, or a `RankFailedError`; the block is a note on it."""
        error, unrestored = None, ""
        if self.pickled_error:
            try:
                error = pickle.loads(self.pickled_error)
            except Exception as reason:  # it could be restored in the rank, but not here
                unrestored = f" (could not be restored here: {reason!r})"
        if not isinstance(error, Exception):
            message = f"{self.place()}: {self.summary}{unrestored}"
            error = RankFailedError(
                message, rank=self.rank, host=self.host, signal=self.signal, exit_code=self.exit_code
            )
        error.add_note(self.describe())
        return error

    def place(self) -> str:
        """Return in words where it happened."""
        process = "the job" if self.rank is None else f"rank {self.rank}"
        return f"{process} on host {self.host}" if self.host else process


def list_further(error: BaseException) -> list[str]:
    """Return the notes on a refused request. The report of a job is one line, if it says more, such as where."""
    notes = [note.splitlines()[1] if note.startswith(RULE) else note for note in getattr(error, "__notes__", ())]
    elsewhere = re.compile(rf"FAILED: [^:]*? on host (?!{re.escape(socket.gethostname())}[ :])")
    return [note for note in notes if not note.endswith(summarise(error)) or elsewhere.match(note)]


def final_message(error: BaseException) -> str:
    """Return the block that describes the failure of a job, or the traceback of any other exception."""
    for note in getattr(error, "__notes__", ()):
        if note.startswith(RULE):
            return note
    return "".join(traceback.format_exception(error)).rstrip("\n")


def shorten(text: str) -> str:
    """Leave out the middle of a text that is too long for a message between processes."""
    left_out = len(text) - _MAX_TEXT
    if left_out <= 0:
        return text
    half = _MAX_TEXT // 2
    return f"{text[:half]}\n[{left_out} characters left out]\n{text[-half:]}"


def describe_exit(exit_code: int) -> tuple[str, int | None, int | None]:
    """Return how a process that had not finished ended: in words, its signal and its status, one of them None."""
    if exit_code >= 0:
        return f"exited with status {exit_code} before finishing", None, exit_code
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    return f"was killed by {name}", -exit_code, None


def write_crash_file(folder: Path, failure: Failure, *, parents: bool = False) -> Failure:
    """Add a failure to {folder}/rank_{rank}.txt, for people.

    Args:
        parents: Whether the run directory may be missing, as on another host than that of rank 0. Otherwise it was
            renamed or deleted, and is not made again.
    """
    path = folder / ("job.txt" if failure.rank is None else f"rank_{failure.rank}.txt")
    try:
        folder.mkdir(parents=parents, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{datetime.now().isoformat(timespec='seconds')}\n{failure.describe()}\n")
    except OSError as error:
        note = f"({path} could not be written: {error.strerror})"
        return replace(failure, detail=f"{failure.detail.rstrip()}\n{note}")
    return replace(failure, files=(*failure.files, path))


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a job ended."""

    value: bytes | None = None
    """What its first rank returned, pickled; None if it did not."""

    failure: Failure | None = None
    stop_signal: int | None = None
    not_saved_s: float | None = None
    """The grace time, if it was over before the job had finished; None otherwise."""

    paused: bool = False
    """Whether it has only paused, saved, to be started again with hosts that wait."""

    ran_s: float = 0.0
    """How long it ran once all ranks had begun, in seconds."""

    left: tuple[int, ...] = ()
    """Processes on this host that the kernel has not let go yet, see `ProcessTree.end`."""

    lost_nodes: tuple[int, ...] = ()
    """Node ranks of the hosts that were gone before they could be told that the job is over."""


def send_result(connection: HostConnection, result: RunResult) -> None:
    """Send how the part of a job on this host ended; what is pickled goes beside the plain values."""
    failure = result.failure
    plain, body = None, result.value or b""
    if failure is not None:
        plain, body = failure.to_plain(), failure.pickled_error
    connection.send(
        "result",
        body,
        failure=plain,
        stop_signal=result.stop_signal,
        finished=result.value is not None,
        not_saved_s=result.not_saved_s,
        paused=result.paused,
    )


def read_result(message: dict[str, Any], body: bytes, *, trusted: bool) -> RunResult:
    """Restore a result; raises a ValueError if the data are not a valid result.

    Args:
        trusted: Whether the sender is the user's own process, so that its exceptions may be unpickled later.
    """
    try:
        plain = message["failure"]
        result = RunResult(
            value=body if message["finished"] else None,
            failure=None if plain is None else Failure.from_plain(plain, body if trusted else b""),
            stop_signal=message["stop_signal"],
            not_saved_s=message["not_saved_s"],
            paused=message["paused"],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a result: {error!r}") from error
    if problems := find_type_problems(RunResult, result, "result"):
        raise ValueError(problems[0])
    return result
