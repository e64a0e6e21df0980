"""Which tests share a worker of pytest-xdist, and in which order they run: those that take longest first."""

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

from support.rerun import strip_group

FILE = Path(__file__).parents[1] / "durations.json"
"""Seconds of each test that takes long, its fixtures included; WRITE_DURATIONS=1 writes those that ran."""

LONG_S = 2.0

OUTCOMES = ("passed", "failed", "error", "")
"""What pytest sorts its reports by; those of set-ups and tear-downs that passed have no name."""


def keep_together(item: pytest.Item) -> None:
    """Have tests that use a module's fixture run on one worker, so that the fixture is made once.

    A test may have another group.
    """
    if item.get_closest_marker("xdist_group") is not None:
        return
    info = getattr(item, "_fixtureinfo", None)  # pytest has no public name for the fixtures that a test will use
    for definitions in () if info is None else info.name2fixturedefs.values():
        for definition in definitions:
            if definition.scope == "module" and definition.baseid == item.nodeid.partition("::")[0]:
                item.add_marker(pytest.mark.xdist_group(definition.baseid))
                return


def sort_longest_first(items: list[pytest.Item]) -> None:
    """Sort tests in place: those that take longest first, those of one group as one; all others keep their order."""
    known = _read_known()
    totals: defaultdict[str, float] = defaultdict(float)
    for item in items:
        totals[_group(item)] += known.get(strip_group(item.nodeid), 0.0)  # xdist may have appended it
    items.sort(key=lambda item: -totals[_group(item)])


def _read_known() -> dict[str, float]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def _group(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return item.nodeid if mark is None else str(mark.args[0])


def write_durations(reporter: pytest.TerminalReporter) -> None:
    """With WRITE_DURATIONS=1, write what each test took; of tests that did not run, what is known stays."""
    if os.environ.get("WRITE_DURATIONS") != "1":
        return
    skipped = {strip_group(report.nodeid) for report in reporter.getreports("skipped")}
    totals: defaultdict[str, float] = defaultdict(float)
    for report in [report for outcome in OUTCOMES for report in reporter.getreports(outcome)]:
        totals[strip_group(report.nodeid)] += report.duration
    known = _read_known() | {name: round(total, 1) for name, total in totals.items() if name not in skipped}
    rows = {name: total for name, total in sorted(known.items()) if total >= LONG_S and _exists(name)}
    FILE.write_text(json.dumps(rows, indent=0, ensure_ascii=False) + "\n")


def _exists(name: str) -> bool:
    """Whether there is still a function with the name of a test."""
    file, _, test = name.partition("::")
    path = FILE.parents[1] / file
    return path.exists() and f"def {test.partition('[')[0]}(" in path.read_text()
