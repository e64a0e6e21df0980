"""Collects what the faults came to, and prints it as the table that docs/reliability.md holds."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab import LIMIT_S, Outcome

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- table of faults: begin -->\n", "<!-- table of faults: end -->\n"

ROWS: list[tuple[str, ...]] = []

Record = Callable[..., None]


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Check what holds for every fault, and note a row for the table."""

    def note(fault: str, where: str, outcome: Outcome, *, last_words: str, patience_s: float = 0.0) -> None:
        assert outcome.noticed_s < LIMIT_S + patience_s
        assert outcome.gone_s < LIMIT_S
        gone_s = outcome.noticed_s + outcome.gone_s
        ROWS.append((fault, where, f"{outcome.noticed_s:.1f}", f"{gone_s:.1f}", str(outcome.status), last_words))

    return note


def _table() -> str:
    head = "| fault | where | command ended after, s | nothing left after, s | status | the console says |\n"
    head += "|---|---|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in ROWS)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if ROWS:
        terminalreporter.section("faults")
        terminalreporter.write(_table())


@pytest.fixture(scope="session", autouse=True)
def _write_table() -> Iterator[None]:
    """With WRITE_FAULT_TABLE=1, put the table of a whole run into the document."""
    yield
    if os.environ.get("WRITE_FAULT_TABLE") == "1":
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        DOCUMENT.write_text(before + BEGIN + _table() + END + rest.partition(END)[2])
