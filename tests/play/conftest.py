"""Runs to look at."""

from dataclasses import replace
from pathlib import Path

import pytest

import mjtrain
from mjtrain.catalog import load_task

CPU = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)


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
        launch=CPU,
        logger="none",
        log_root=str(folder),
    )
    mjtrain.train(
        "Quadruped-Velocity-Flat", num_envs=8, max_iterations=1, launch=CPU, logger="none", log_root=str(folder)
    )
    return folder


@pytest.fixture(scope="session")
def cartpole_run(log_root: Path) -> Path:
    (run_dir,) = (log_root / "cartpole_balance").iterdir()
    return run_dir


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep those that share runs in one of pytest-xdist's workers, so that they are trained once."""
    for item in items:
        if "log_root" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("played runs"))
