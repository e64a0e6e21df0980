"""Findings as a table, as advice, and as plain values; pure."""

from collections.abc import Sequence
from typing import Any

from mjtrain.tools.doctor.finding import Finding

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
