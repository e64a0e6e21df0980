"""What a host is asked, what checks have found, and how that is shown; pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

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
    """What a run on the host would use."""

    log_root: str
    """Folder below which runs live."""

    checkpoint_url: str | None = None
    """Object storage; None for none."""

    video: bool = False
    """Whether the run would record videos: then it fails where nothing can be rendered."""

    gpu_ids: tuple[int, ...] | str | None = "auto"
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
    """Checks to leave out: of `host.SLOW_CHECKS`, and "ranks"."""

    timeout_s: float = 60.0
    """Time that a check may take, in seconds."""


_ROW = "{:13} {:12} {:11} {}"  # rows are printed as they come: a cell that is too long pushes the others

HEAD = _ROW.format("check", "host", "result", "figure")
"""First row of the table."""


def format_finding(finding: Finding) -> str:
    """Format a finding as a row of the table."""
    return _ROW.format(finding.check, finding.place or "-", finding.result, finding.figure).rstrip()


def format_advice(findings: Sequence[Finding]) -> list[str]:
    """Return a line of advice for each finding that has one, failures first, and a last line that sums up."""
    lines, counts = [], []
    for kind in ("failure", "warning"):
        found = [finding for finding in findings if finding.result == kind]
        for one in found:
            place = f" on {one.place}" if one.place else ""
            lines.append(f"{kind}: {one.check}{place}: {one.advice}")
        counts += [f"{len(found)} {kind}{'' if len(found) == 1 else 's'}"] if found else []
    if not counts:
        return ["nothing is wrong"]
    return [*lines, f"{', '.join(counts)}: a run {'would fail' if would_fail(findings) else 'works'}"]


def is_hidden(finding: Finding) -> bool:
    """Return whether a short table has no row for a finding: nothing is wrong with its host."""
    return bool(finding.place) and finding.result in ("ok", "not checked")


def count_hidden(findings: Sequence[Finding]) -> list[str]:
    """Return a line for each host that says how much of it a short table has no rows for."""
    hidden = [finding for finding in findings if is_hidden(finding)]
    lines = []
    for place in dict.fromkeys(finding.place for finding in hidden):
        results = [finding.result for finding in hidden if finding.place == place]
        counts = [f"{results.count(kind)} {kind}" for kind in ("ok", "not checked") if kind in results]
        lines.append(f"{place}: {', '.join(counts)} (--all prints them)")
    return lines


def would_fail(findings: Sequence[Finding]) -> bool:
    """Return whether a run would fail."""
    return any(finding.result == "failure" for finding in findings)


def to_plain(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return all findings as plain values, with whether a run would fail."""
    names = ("check", "place", "result", "figure", "advice")
    plain = [{name: getattr(finding, name) for name in names} for finding in findings]
    return {"would_fail": would_fail(findings), "findings": plain}
