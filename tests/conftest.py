import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

import mjtrain  # before any test imports torch, whose threads would spin where they should sleep
from support.collected import COLLECTED, is_whole
from support.commands import fork_reapers
from support.durations import keep_together, sort_longest_first, write_durations
from support.machine import SLOWNESS, measure_slowness
from support.shared import make_once

pytest_plugins = ["support.hangs", "support.tiers"]

DOCUMENT = Path(__file__).parents[1] / "docs" / "reliability.md"
TESTS = Path(__file__).parent
PROCESS = (
    "cli/test_commands.py",
    "cli/test_plot.py",
    "cli/test_scaling.py",
    "cli/test_tasks.py",
    "deploy",
    "deployment/test_deploy.py",
    "deployment/test_deploy_objects.py",
    "deployment/test_deploy_robot.py",
    "deployment/test_deploy_vision.py",
    "env/external/test_foreign_training.py",
    "evaluation/playing/test_command.py",
    "evaluation/playing/test_native_viewer.py",
    "evaluation/playing/test_record_dataset.py",
    "evaluation/playing/test_replay_page.py",
    "evaluation/playing/test_sim_to_sim.py",
    "evaluation/playing/test_vision.py",
    "evaluation/playing/test_web_viewer.py",
    "evaluation/test_evaluation.py",
    "faults",
    "launcher/test_forks.py",
    "launcher/test_launch.py",
    "learners",
    "learning",
    "multinode",
    "runs/storage/test_stored_trainings.py",
    "runs/storage/test_uploader.py",
    "runs/test_formats.py",
    "runs/test_resume.py",
    "runs/test_robot.py",
    "runs/test_trained_run.py",
    "sim/cameras/test_against_mujoco.py",
    "sim/engines/test_warp.py",
    "sim/engines/test_warp_buffers.py",
    "sim/robots/test_urdf.py",
    "tasks/test_hand_grasp.py",
    "test_api.py",
    "test_notebook.py",
    "test_suite.py",
    "test_wheels.py",
    "tools/doctor/test_ills.py",
    "tools/sweep/test_sweep.py",
    "tools/sweep/test_sweep_command.py",
    "training/hooks/test_checkpoint_hook.py",
    "training/hooks/test_video_hook.py",
    "training/reporting/test_wandb_writer.py",
)
"""Folders and files whose tests all start jobs or trainings; the quick loop does not even import them."""

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
"""Hundreds of processes import torch. Without bytecode files each would compile its sources again, for seconds."""

BEGIN, END = "<!-- table of faults: begin -->\n", "<!-- table of faults: end -->\n"


def pytest_configure(config: pytest.Config) -> None:
    """Measure how slow this machine is now, and keep what XLA compiles between runs, for the workers and their jobs.

    It is kept where Warp keeps its kernels, so that a fresh clone, as CI makes one, finds it too.
    """
    config.stash[COLLECTED] = []
    fork_reapers()
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="mjtrain-tests-")  # where trainings write what they used
    if config.option.markexpr != "not process" and not config.option.collectonly:
        os.environ[SLOWNESS] = f"{measure_slowness():.2f}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(home / "mjtrain" / "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Most tests start processes and wait for them, so there is one worker more than cores; not in the quick loop."""
    return len(os.sched_getaffinity(0)) + (config.option.markexpr != "not process")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while everything is imported, nor later among what was, which stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out of the quick loop what it would deselect: importing RSL-RL and its like takes longer than its tests."""
    return True if config.option.markexpr == "not process" and _is_process_only(collection_path) else None


def _is_process_only(path: Path) -> bool:
    place = path.relative_to(TESTS).as_posix()
    return any(place == name or place.startswith(f"{name}/") for name in PROCESS)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark by folder and by fixture, before pytest-xdist looks at the marks."""
    item.config.stash[COLLECTED].append(item)
    if _is_process_only(item.path):
        item.add_marker(pytest.mark.process)
    keep_together(item)
    if item.get_closest_marker("gpu") is not None and not _has_gpu():
        item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU, and none is available"))


def pytest_unconfigure() -> None:
    """Remove what trainings wrote for this user."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that no worker has a long test left when the others have ended."""
    sort_longest_first(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """With WRITE_SUPPORT_TABLE=1, write the tables of docs/support.md from the marks of all tests."""
    if os.environ.get("WRITE_SUPPORT_TABLE") != "1" or os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
        return
    from support.claims import Names, claims_of, list_measured
    from support.support_page import Tables, write_tables

    if not is_whole(session.config):
        raise pytest.UsageError("WRITE_SUPPORT_TABLE=1 needs the marks of all tests: name no file and no -m")
    claims = [claim for item in session.config.stash[COLLECTED] for claim in claims_of(item)] + list_measured()
    write_tables(Tables(claims, Names()).write())


def _has_gpu() -> bool:
    import torch  # seconds, which the process that only distributes tests need not spend

    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def log_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of Cartpole-Balance that has learned something, and one of the quadruped that has not."""
    return make_once(tmp_path_factory, "logs", _train_two_runs)


def _train_two_runs(folder: Path) -> None:
    from mjtrain.env.catalog import load_task

    cartpole = load_task("Cartpole-Balance")
    options = {
        "launch": mjtrain.LaunchConfig(gpu_ids=None, num_threads=1),
        "logger": "none",
        "log_root": str(folder),
    }
    agent = replace(cartpole.agent, save_interval=10)
    mjtrain.train("Cartpole-Balance", agent=agent, num_envs=256, max_iterations=40, **options)
    mjtrain.train("Quadruped-Velocity-Flat", num_envs=8, max_iterations=1, **options)


@pytest.fixture(scope="session")
def cartpole_run(log_root: Path) -> Path:
    (run_dir,) = (log_root / "cartpole_balance").iterdir()
    return run_dir


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the GPUs that this machine may have."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def short_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """End the trial with random actions after two env steps; for tests of what is found before or after it.

    The trial takes most of the time of a check.
    """
    from mjtrain.training.preflight import dry_step

    monkeypatch.setattr(dry_step, "NUM_STEPS", 2)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tables of faults and mistakes; with WRITE_FAULT_TABLE=1, put that of faults into the document.

    Here and not next to those tests, because the process that hears of all reports knows no other conftest.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    write_durations(terminalreporter)
    reports = [report for report in terminalreporter.getreports("passed") if report.when == "call"]
    reports.sort(key=lambda report: (*report.location[:2], report.nodeid))  # they come in any order
    mistakes = [str(row) for report in reports for name, row in report.user_properties if name == "mistake"]
    if mistakes:
        terminalreporter.section("mistakes")
        terminalreporter.write("| mistake | input | error message |\n|---|---|---|\n" + "".join(mistakes))
    rows = [row for report in reports for name, row in report.user_properties if name == "fault"]
    if not rows:
        return
    head = "| fault | where | command ended after, s | all processes gone after, s | status | console message |\n"
    table = head + "|---|---|---|---|---|---|\n" + "".join(rows)
    terminalreporter.section("faults")
    terminalreporter.write(table)
    if os.environ.get("WRITE_FAULT_TABLE") == "1":
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        DOCUMENT.write_text(before + BEGIN + table + END + rest.partition(END)[2])
