"""The task is registered under its name, and trains."""

from pathlib import Path

import mjtrain


def test_it_trains_for_two_iterations(tmp_path: Path) -> None:
    """With few worlds on the CPU, this takes seconds."""
    result = mjtrain.train(
        "My-Robots-Pendulum",
        num_envs=16,
        max_iterations=2,
        launch=mjtrain.LaunchConfig(gpu_ids=None),
        logger="none",
        log_root=str(tmp_path),
    )
    assert result.metrics["iteration"] == 2
