"""The example observes, step by step, what the task's environment observes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mjtrain.env.catalog import load_task
from mjtrain.evaluation.eval_config import to_eval_config
from mjtrain.evaluation.export.metadata import describe_policy
from mjtrain.learning.rsl_rl.policy import ActorPolicy
from mjtrain.runs.trained_run import TrainedRun
from mjtrain.sim.robots.robot import save_model
from support.envs import TASKS, actions_for, make_env
from support.machine import patience
from support.videos import needs_drawing

SCRIPT = Path(__file__).parents[2] / "examples" / "deploy.py"
NUM_STEPS = 12
STEP = """
import importlib.util, json, os, sys, traceback
import mujoco
import numpy as np
spec = importlib.util.spec_from_file_location("deploy", sys.argv[1])
deploy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(deploy)
def step(folder):
    given = np.load(folder / "given.npz")
    robot = deploy.Robot(folder, json.loads((folder / "policy.json").read_text()), [], 0)
    robot.data.qpos[:], robot.data.qvel[:] = given["qpos"][0], given["qvel"]
    mujoco.mj_forward(robot.model, robot.data)
    observed = {"qpos": []}
    for command, action in zip(given["commands"], given["actions"], strict=True):
        robot.command = command
        for name, value in (robot.observe() | {"qpos": robot.data.qpos.copy()}).items():
            observed.setdefault(name, []).append(value)
        robot.act(action)
    assert "torch" not in sys.modules
    np.savez(folder / "observed.npz", **{name: np.stack(values) for name, values in observed.items()})
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            step(deploy.Path(line.rstrip()))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Does in plain MuJoCo what was done in the environment of each folder, with the same commands, in a fork for each."""


@pytest.fixture(scope="module")
def example() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported the example, for all tasks: that takes longer than what it does for one."""
    command = [sys.executable, "-c", STEP, str(SCRIPT)]
    environ = os.environ | {"MUJOCO_GL": os.environ.get("MUJOCO_GL", "egl")}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environ) as process:
        yield process
        process.communicate(timeout=patience(60))
    assert process.returncode == 0


@pytest.mark.supports("deployment", task="{task}")
@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=needs_drawing if task.endswith("Vision") else ())
        for task in TASKS
        if not task.endswith("-Track")  # the reference motion is not in the metadata
    ],
)
def test_it_observes_what_the_environment_observes(task: str, example: subprocess.Popen[str], tmp_path: Path) -> None:
    config = load_task(task)
    calm = to_eval_config(config.env)
    own_actions = {name: replace(term, delay=(0, 0)) for name, term in calm.actions.items()}  # the example has none
    env = make_env(replace(calm, actions=own_actions), num_envs=1, seed=3)
    policy = ActorPolicy(config.agent, env.observe(), env.num_actions)
    metadata = describe_policy(TrainedRun(task=task, env=config.env, agent=config.agent), env, policy)
    (tmp_path / "policy.json").write_text(json.dumps(metadata))
    save_model(config.env, tmp_path / "model.mjb")

    flat = [name for name, shape in policy.inputs.items() if len(shape) == 1]
    images = [name for name in policy.inputs if name not in flat]
    actions = 0.3 * actions_for(env, NUM_STEPS, seed=4)[:, 0]
    qvel, expected = env.state.qvel[0].numpy().copy(), []
    for action in actions:
        command = np.concatenate([*(env.command(name)[0].numpy() for name in [*config.env.commands][:1]), []])
        groups = {name: env.observe()[name][0].numpy().copy() for name in policy.inputs}
        seen = {"observations": np.concatenate([groups[name] for name in flat])} if flat else {}
        seen |= {name: groups[name] for name in images}
        expected.append(seen | {"qpos": env.state.qpos[0].numpy().copy(), "commands": command})
        _, _, terminated, truncated = env.step(action[None])
        assert not terminated.any()
        assert not truncated.any()
    by_name = {name: np.stack([step[name] for step in expected]) for name in expected[0]}
    qpos, commands = by_name["qpos"], by_name.pop("commands")
    np.savez(tmp_path / "given.npz", qpos=qpos, qvel=qvel, commands=commands, actions=actions.numpy())

    assert example.stdin is not None
    assert example.stdout is not None
    print(tmp_path, file=example.stdin, flush=True)
    assert example.stdout.readline() == "0\n", "its traceback is on standard error"
    observed = dict(np.load(tmp_path / "observed.npz"))
    assert observed.keys() == by_name.keys()
    np.testing.assert_allclose(observed["qpos"], by_name["qpos"], rtol=0, atol=1e-4)
    assert np.abs(by_name["qpos"][-1] - by_name["qpos"][0]).max() > 1e-3
    if flat:
        np.testing.assert_allclose(observed["observations"], by_name["observations"], rtol=0, atol=2e-3)
    for name in images:
        assert observed[name].dtype == by_name[name].dtype
        span = 255.0 if by_name[name].dtype == np.uint8 else 1.0
        difference = np.abs(observed[name].astype(float) - by_name[name].astype(float)).mean(axis=(0, 2, 3))
        assert difference.max() < 0.04 * span, "of any channel; OpenGL lights large planes at their corners"
        assert by_name[name].std(axis=(0, 2, 3)).min() > 0.02 * span
