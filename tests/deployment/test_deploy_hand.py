"""The example turns a cube in the palm to one orientation after the other."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mjtrain_policies
from mjtrain.env.catalog import load_task
from mjtrain.sim.robots.robot import save_model
from support.machine import patience

LEARNED = mjtrain_policies.FOLDER / "Hand-Reorient-Cube" / "policy.onnx"

SCRIPT = Path(__file__).parents[2] / "examples" / "deploy.py"


@pytest.mark.supports("deployment", task="Hand-Reorient-Cube")
def test_a_learned_policy_reaches_goal_after_goal(tmp_path: Path) -> None:
    """It reached 3 in 10 s on average; in the first iterations of a training an episode has 0.1."""
    shutil.copy(LEARNED, tmp_path)
    save_model(load_task("Hand-Reorient-Cube").env, tmp_path / "model.mjb")
    command = [sys.executable, str(SCRIPT), str(tmp_path), "--seconds", "10", "--tolerance", "0.4"]
    goals = []
    for seed in range(4):
        start = ["--command", "1", "0", "0", "0", "--seed", str(seed)]
        done = subprocess.run([*command, *start], capture_output=True, text=True, timeout=patience(60), check=True)
        goals.append(json.loads(done.stdout)["goals"])
    assert sum(goals) >= 5, goals
