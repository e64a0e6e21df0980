"""What a host is asked, and what a check has found; pure."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from mjtrain.config import LaunchConfig

Result = Literal["ok", "not checked", "warning", "failure"]
"""ok; not checked, because it does not matter or cannot be tried here; a run works, but worse; a run would fail."""


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    check: str
    """What was looked at, such as "log root"."""

    figure: str
    """What was measured or read, in words and numbers."""

    advice: str = ""
    """How to fix it, in one line; empty where nothing has to be done."""

    result: Result = "ok"
    place: str = ""
    """Name of the host; empty for what concerns the whole job."""

    def at(self, place: str) -> "Finding":
        """Return the same finding of a host."""
        return replace(self, place=place)


ok = Finding
skipped = partial(Finding, result="not checked")
warning = partial(Finding, result="warning")
failure = partial(Finding, result="failure")


def grade(check: str, figure: str, advice: str, *, warns: bool, fails: bool = False) -> Finding:
    """Return a finding that is ok, and then without advice, unless one of the conditions holds."""
    return (failure if fails else warning)(check, figure, advice) if fails or warns else ok(check, figure)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a run on the host would use; see the flags of `doctor`."""

    launch: LaunchConfig
    log_root: str = "logs"
    checkpoint_url: str | None = None
    video: bool = False
    num_ranks: int | None = None
    """Ranks on the host; None for one per GPU, or one."""

    world_size: int = 1
    listens_at: tuple[str, int] | None = None
    """Name and port at which this host waits for the others; None if it does not, or at a port that is free."""

    skip: tuple[str, ...] = ()
    timeout_s: float = 60.0
