"""Runs to look at."""

from dataclasses import replace
from pathlib import Path

import pytest

import mjtrain
from mjtrain.catalog import load_task

CPU = mjtrain.LaunchConfig(gpu_ids=None, num_threads=1)


@pytest.fixture(scope="session")
def log_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of Cartpole-Balance that can balance, of two checkpoints, and a tiny one of the quadruped."""
    folder = tmp_path_factory.mktemp("logs")
    cartpole = load_task("Cartpole-Balance")
    agent = replace(cartpole.agent, save_interval=2)
    mjtrain.train(
        "Cartpole-Balance",
        agent=agent,
        max_iterations=40,
        launch=CPU,
        logger="none",
        log_root=str(folder),
        keep_checkpoints=20,
    )
    mjtrain.train(
        "Quadruped-Velocity-Flat", num_envs=8, max_iterations=1, launch=CPU, logger="none", log_root=str(folder)
    )
    return folder


@pytest.fixture(scope="session")
def cartpole_run(log_root: Path) -> Path:
    (run_dir,) = (log_root / "cartpole_balance").iterdir()
    return run_dir
