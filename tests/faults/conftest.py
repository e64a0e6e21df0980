"""Collects what the faults came to, and prints it as the table that docs/reliability.md holds."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from lab import LIMIT_S, Outcome

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- table of faults: begin -->\n", "<!-- table of faults: end -->\n"

Record = Callable[..., None]


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Record:
    """Check what holds for every fault, and note a row for the table, with the test's report."""

    def note(fault: str, where: str, outcome: Outcome, *, last_words: str, patience_s: float = 0.0) -> None:
        assert outcome.noticed_s < LIMIT_S + patience_s
        assert outcome.gone_s < LIMIT_S
        gone_s = outcome.noticed_s + outcome.gone_s
        row = (fault, where, f"{outcome.noticed_s:.1f}", f"{gone_s:.1f}", str(outcome.status), last_words)
        record_property("fault", f"| {' | '.join(row)} |\n")

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table; with WRITE_FAULT_TABLE=1, put that of a whole run into the document."""
    reports = [report for report in terminalreporter.getreports("passed") if report.when == "call"]
    reports.sort(key=lambda report: report.location[:2])  # with several workers they come in any order
    rows = [row for report in reports for name, row in report.user_properties if name == "fault"]
    if not rows:
        return
    head = "| fault | where | command ended after, s | nothing left after, s | status | the console says |\n"
    table = head + "|---|---|---|---|---|---|\n" + "".join(rows)
    terminalreporter.section("faults")
    terminalreporter.write(table)
    if os.environ.get("WRITE_FAULT_TABLE") == "1":
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        DOCUMENT.write_text(before + BEGIN + table + END + rest.partition(END)[2])
