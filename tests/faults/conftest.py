"""Collects what the faults came to, for the table that tests/conftest.py prints."""

from collections.abc import Callable

import pytest

from support.jobs import LIMIT_S, Outcome, Record
from support.promises import promised


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Record:
    """Check what holds for every fault, and note a row for the table, with the test's report."""

    def note(fault: str, where: str, outcome: Outcome, *, last_words: str, patience_s: float = 0.0) -> None:
        assert outcome.noticed_s < promised(LIMIT_S + patience_s)
        assert outcome.gone_s < promised(LIMIT_S)
        gone_s = outcome.noticed_s + outcome.gone_s
        row = (fault, where, f"{outcome.noticed_s:.1f}", f"{gone_s:.1f}", str(outcome.status), last_words)
        record_property("fault", f"| {' | '.join(row)} |\n")

    return note
