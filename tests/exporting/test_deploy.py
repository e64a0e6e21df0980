"""The example that runs an exported policy without mjtrain."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import mjtrain
from mjtrain.cli.export import main

SCRIPT = Path(__file__).parents[2] / "examples" / "deploy.py"


def test_it_needs_no_mjtrain() -> None:
    names = set()
    for node in ast.walk(ast.parse(SCRIPT.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    assert names - set(sys.stdlib_module_names) - {"pathlib"} == {"mujoco", "numpy", "onnxruntime"}


def test_a_briefly_trained_policy_balances_the_pole(tmp_path: Path) -> None:
    result = mjtrain.train(
        "Cartpole-Balance",
        num_envs=512,
        max_iterations=60,
        log_root=str(tmp_path),
        logger="none",
        launch=mjtrain.LaunchConfig(gpu_ids=None, num_threads=1),
    )
    assert result.metrics["mean_episode_length"] > 400
    main([str(result.run_dir), "--out", str(tmp_path / "policy"), "--observations", "100"])
    for seed in ("0", "1", "2"):
        command = [sys.executable, "-I", str(SCRIPT), str(tmp_path / "policy"), "--seconds", "10", "--seed", seed]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        report = json.loads(done.stdout)
        assert report["hinge"] < 0.2, "rad, from upright"
        assert report["slider"] < 2.0, "m, from the middle"
