"""What a check has found; pure."""

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
    """How it is."""

    figure: str
    """What was measured or read, in words and numbers."""

    advice: str = ""
    """What mends it, in one line; empty where nothing has to be done."""

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
