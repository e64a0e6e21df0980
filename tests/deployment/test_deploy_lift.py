"""The example carries a cube to where it is told."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mjtrain_policies
from mjtrain.env.catalog import load_task
from mjtrain.sim.robots.robot import save_model
from support.machine import patience

LEARNED = mjtrain_policies.FOLDER / "Arm-Lift-Cube" / "policy.onnx"

SCRIPT = Path(__file__).parents[2] / "examples" / "deploy.py"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lift")
    shutil.copy(LEARNED, folder)
    save_model(load_task("Arm-Lift-Cube").env, folder / "model.mjb")
    return folder


@pytest.mark.supports("deployment", task="Arm-Lift-Cube")
@pytest.mark.parametrize("place", [(0.45, 0.1, 0.25), (0.38, -0.18, 0.14), (0.53, 0.18, 0.3)])
def test_a_learned_policy_carries_the_cube_to_its_place(place: tuple[float, float, float], exported: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(exported), "--seconds", "4", "--command", *map(str, place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=True)
    report = json.loads(done.stdout)
    assert report["commanded"] == list(place)
    assert np.linalg.norm(np.subtract(report["cube"][:3], place)) < 0.02
