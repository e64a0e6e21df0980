"""Findings as a table, as advice, and as plain values; pure."""

from collections.abc import Sequence
from typing import Any

from mjtrain.tools.doctor.finding import Finding

HEAD = ("check", "host", "result", "figure")
_WIDTHS = (13, 12, 11)
"""Of all columns but the last: rows are printed as they come."""


def format_row(cells: Sequence[str]) -> str:
    """Format one row of the table; a cell that is too long pushes the others."""
    *first, last = cells
    padded = [cell.ljust(width) for cell, width in zip(first, _WIDTHS, strict=True)]
    return " ".join([*padded, last]).rstrip()


def format_finding(finding: Finding) -> str:
    """Format a finding as a row of the table."""
    return format_row((finding.check, finding.place or "-", finding.result, finding.figure))


def format_advice(findings: Sequence[Finding]) -> list[str]:
    """Return a line of advice for each finding that has one, failures first, and a last line that sums up."""
    order = ("failure", "warning", "ok", "not checked")
    advised = sorted((finding for finding in findings if finding.advice), key=lambda one: order.index(one.result))
    lines = [f"{one.result}: {_name(one)}: {one.advice}" for one in advised]
    failures, warnings = (sum(one.result == kind for one in findings) for kind in ("failure", "warning"))
    if not failures and not warnings:
        return [*lines, "nothing is wrong"]
    counts = [
        f"{count} {kind}{'' if count == 1 else 's'}"
        for kind, count in (("failure", failures), ("warning", warnings))
        if count
    ]
    return [*lines, f"{', '.join(counts)}: a run {'would fail' if failures else 'works'}"]


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
    return {"would_fail": would_fail(findings), "findings": [finding.to_plain() for finding in findings]}


def _name(finding: Finding) -> str:
    return f"{finding.check} on {finding.place}" if finding.place else finding.check
