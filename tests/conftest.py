import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mjtrain
from mjtrain.catalog import load_task

DOCUMENT = Path(__file__).parents[1] / "docs" / "reliability.md"
ONE_CPU = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)
BEGIN, END = "<!-- table of faults: begin -->\n", "<!-- table of faults: end -->\n"


def pytest_configure() -> None:
    """Give each of pytest-xdist's workers a core, as far as there are: two trainings on one wait for each other."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        cores = sorted(os.sched_getaffinity(0))
        index = int(worker.removeprefix("gw"))
        if index < len(cores):
            os.sched_setaffinity(0, {cores[index]})


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; keep tests that share a trained run on one worker of pytest-xdist."""
    for item in items:
        if "log_root" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("trained run"))
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU, and there is none here")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def log_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of Cartpole-Balance that has learned something, and one of the quadruped that has not."""
    folder = tmp_path_factory.mktemp("logs")
    cartpole = load_task("Cartpole-Balance")
    agent = replace(cartpole.agent, save_interval=10)
    mjtrain.train(
        "Cartpole-Balance",
        agent=agent,
        num_envs=256,
        max_iterations=40,
        launch=ONE_CPU,
        logger="none",
        log_root=str(folder),
    )
    mjtrain.train(
        "Quadruped-Velocity-Flat", num_envs=8, max_iterations=1, launch=ONE_CPU, logger="none", log_root=str(folder)
    )
    return folder


@pytest.fixture(scope="session")
def cartpole_run(log_root: Path) -> Path:
    (run_dir,) = (log_root / "cartpole_balance").iterdir()
    return run_dir


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
