"""The example that runs an exported policy in plain MuJoCo."""

import ast
import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import onnx
import pytest
import torch

import mjtrain
from mjtrain.cli.export import main
from mjtrain.config import to_plain
from mjtrain.env.catalog import load_task
from mjtrain.sim.robots.robot import describe_actuators, save_model
from support.envs import make_env
from support.machine import patience

SCRIPT = Path(__file__).parents[2] / "examples" / "deploy.py"


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("deploy", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_needs_of_mjtrain_what_needs_no_torch() -> None:
    names = set()
    for node in ast.walk(ast.parse(SCRIPT.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    others = {name for name in names - set(sys.stdlib_module_names) if not name.startswith("mjtrain.deployment.")}
    assert others == {"mjtrain.runtime.errors", "mujoco", "numpy", "onnxruntime"}


def test_a_folder_without_a_policy_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False)
    expected = f"{tmp_path}: has no policy.onnx; give the folder that `mjtrain export` wrote\n"
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.supports("deployment", task="Cartpole-Balance")
def test_a_briefly_trained_policy_balances_the_pole(cartpole_run: Path, tmp_path: Path) -> None:
    assert mjtrain.Run(cartpole_run).metrics["mean_episode_length"][-1] > 400
    main([str(cartpole_run), "--out", str(tmp_path / "policy"), "--observations", "100"])
    for seed in ("0", "1", "2"):
        command = [sys.executable, str(SCRIPT), str(tmp_path / "policy"), "--seconds", "10", "--seed", seed]
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=True)
        report = json.loads(done.stdout)
        assert report["hinge"] < 0.2, "rad, from upright"
        assert report["slider"] < 2.0, "m, from the middle"


def test_what_the_example_cannot_observe_is_one_line(cartpole_run: Path, tmp_path: Path) -> None:
    main([str(cartpole_run), "--out", str(tmp_path), "--observations", "20"])
    model = onnx.load(tmp_path / "policy.onnx")
    (entry,) = [entry for entry in model.metadata_props if entry.key == "mjtrain"]
    metadata = json.loads(entry.value)
    term = metadata["observations"][0]
    term["func"] = "own:mine"
    entry.value = json.dumps(metadata)
    onnx.save(model, tmp_path / "policy.onnx")
    command = [sys.executable, str(SCRIPT), str(tmp_path), "--seconds", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.returncode == 1
    assert done.stderr == f"the robot must report the observations {term['name']} (own:mine) as values\n"


def test_the_example_reports_ball_joints() -> None:
    body = '<body><joint name="{}" type="{}"/><geom size="0.1"/>{}</body>'
    inner = body.format("hinge", "hinge", "")
    worldbody = body.format("ball", "ball", inner)
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{worldbody}</worldbody></mujoco>")
    deploy = load_example()
    history = np.array([[1.0, 0.0, 0.0, 0.0, -0.5], [0.0, -1.0, 0.0, 0.0, 0.25]])
    assert deploy.find_largest(model, history) == {"ball": [1.0, 1.0, 0.0, 0.0], "hinge": 0.5}


def test_relative_actions_are_added_up_as_in_training(tmp_path: Path) -> None:
    task = load_task("Quadruped-Velocity-Flat").env
    legs = replace(task.actions["legs"], relative=True, scale=0.4, delay=(0, 0))
    config = replace(task, actions={"legs": legs})
    save_model(config, tmp_path / "model.mjb")
    env = make_env(config, num_envs=1)
    actuators, pose = describe_actuators(env.engine.model), env.engine.layout.qpos
    metadata = {
        "actions": [{**to_plain(row), **actuators[row["actuator"]]} for row in env.action_table],
        "default_pose": {name: env.engine.layout.default_qpos[columns].tolist() for name, columns in pose.items()},
        "control_period_s": env.step_dt,
        "physics_step_s": env.engine.layout.timestep_s,
    }
    deploy = load_example()
    robot = deploy.Robot(tmp_path, metadata, command=[0.0, 0.0, 0.0], seed=0)
    for action in (torch.ones(1, 12), torch.full((1, 12), -0.5), torch.linspace(-1, 1, 12)[None]):
        _, _, terminated, _ = env.step(action)
        assert not terminated.any()
        robot.act(action[0].numpy())
        assert robot.data.ctrl.tolist() == pytest.approx(env.state.ctrl[0].tolist(), abs=1e-6)
        displacements = env.ctrl_displacements()[0].tolist()
        assert robot.read("mjtrain.mdp.observations:ctrl_rel", {}).tolist() == pytest.approx(displacements, abs=1e-6)
