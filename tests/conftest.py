import os
from pathlib import Path

import pytest
import torch

DOCUMENT = Path(__file__).parents[1] / "docs" / "reliability.md"
BEGIN, END = "<!-- table of faults: begin -->\n", "<!-- table of faults: end -->\n"


def pytest_configure() -> None:
    """Give each of pytest-xdist's workers a core, as far as there are: two trainings on one wait for each other."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        cores = sorted(os.sched_getaffinity(0))
        index = int(worker.removeprefix("gw"))
        if index < len(cores):
            os.sched_setaffinity(0, {cores[index]})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU, and there is none here")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the GPUs that this machine may have."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of faults; with WRITE_FAULT_TABLE=1, put that of a whole run into the document.

    Here and not next to those tests, because the process that hears of all reports knows no other conftest.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
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
