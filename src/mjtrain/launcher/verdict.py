"""How a job ended, or the part of it on one host; and how that travels."""

from dataclasses import dataclass
from typing import Any

from mjtrain.launcher.failure import Failure
from mjtrain.launcher.link import Link


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a job ended."""

    value: bytes | None = None
    """What its first rank returned, pickled; None if it did not."""

    failure: Failure | None = None
    """Why it failed."""

    stop_signal: int | None = None
    """The signal that asked it to stop."""

    ran_s: float = 0.0
    """How long it ran once all ranks had begun, in seconds."""


def report_verdict(link: Link, verdict: Verdict) -> None:
    """Send how the part of a job on this host ended; what is pickled goes beside the plain values."""
    failure = verdict.failure
    plain, body = None, verdict.value or b""
    if failure is not None:
        plain, body = failure.to_plain(), failure.pickled_error
    link.send("verdict", body, failure=plain, stop_signal=verdict.stop_signal, finished=verdict.value is not None)


def read_verdict(message: dict[str, Any], body: bytes, *, trusted: bool) -> Verdict:
    """Put a verdict together again.

    Args:
        message: What came from `report_verdict`.
        body: What came beside it.
        trusted: Whether the sender is the user's own process, so that its exceptions may be unpickled later.
    """
    plain = message["failure"]
    if plain is None:
        return Verdict(value=body if message["finished"] else None, stop_signal=message["stop_signal"])
    failure = Failure.from_plain(plain, body if trusted else b"")
    return Verdict(failure=failure, stop_signal=message["stop_signal"])
