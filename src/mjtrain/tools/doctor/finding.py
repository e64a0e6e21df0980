"""What a host is asked, and what a check has found; pure."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Result = Literal["ok", "not checked", "warning", "failure"]
"""ok; not checked, because it does not matter or cannot be tried here; a run works, but worse; a run would fail."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the table."""

    check: str
    """What was looked at, such as "log root"."""

    place: str = ""
    """Name of the host; empty for what concerns the whole job."""

    result: Result
    figure: str
    """What was measured or read, in words and numbers."""

    advice: str = ""
    """How to fix it, in one line; empty where nothing has to be done."""

    def at(self, place: str) -> "Finding":
        """Return the same finding of a host."""
        return replace(self, place=place)

    def to_plain(self) -> dict[str, str]:
        """Return it as plain values, see `from_plain`."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Finding":
        """Restore it from what `to_plain` returned."""
        return cls(**plain)


def ok(check: str, figure: str) -> Finding:
    """Return that a check found nothing wrong."""
    return Finding(check=check, result="ok", figure=figure)


def skipped(check: str, figure: str) -> Finding:
    """Return that a check was not made, and why."""
    return Finding(check=check, result="not checked", figure=figure)


def warning(check: str, figure: str, advice: str) -> Finding:
    """Return that a run works, but worse than it could."""
    return Finding(check=check, result="warning", figure=figure, advice=advice)


def failure(check: str, figure: str, advice: str) -> Finding:
    """Return that a run would fail."""
    return Finding(check=check, result="failure", figure=figure, advice=advice)


Judge = Callable[[str, str, str], Finding]
"""`warning` or `failure`."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a run on the host would use."""

    log_root: str
    """Absolute path of the folder below which runs live."""

    checkpoint_url: str | None = None
    """Object storage; None for none."""

    video: bool = False
    """Whether the run would record videos: then it fails where nothing can be rendered."""

    gpu_ids: list[int] | str | None = "auto"
    """As `LaunchConfig.gpu_ids`."""

    num_ranks: int | None = None
    """Ranks on the host; None for one per GPU, or one."""

    world_size: int = 1
    num_threads: int | None = None
    """Threads of each rank; None for the cores divided by the ranks."""

    interface: str | None = None
    """Network interface that was asked for."""

    listens_at: tuple[str, int] | None = None
    """Name and port at which this host waits for the others; None if it does not, or at a port that is free."""

    skip: tuple[str, ...] = ()
    """Checks to leave out, of `timed.SLOW_CHECKS`."""

    timeout_s: float = 60.0
    """Time that a check may take, in seconds."""

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain values, see `from_plain`."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Question":
        """Restore it from what `to_plain` returned, after a way through JSON."""
        address = plain["listens_at"]
        return cls(**{**plain, "listens_at": None if address is None else (address[0], address[1])})
