"""The example runs a policy that sees, from pictures of plain MuJoCo."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import mjtrain
import mjtrain_policies
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.sim.robots.robot import save_model
from support.envs import make_env
from support.machine import patience
from support.videos import needs_drawing
from support.vision import make_vision_env, make_vision_task, see, train_vision

LEARNED = mjtrain_policies.FOLDER / "Cartpole-Balance-Vision" / "policy.onnx"

SCRIPT = Path(__file__).parents[2] / "examples" / "deploy.py"
GROUPS = {
    "image": {"rgb": see(history=3)},
    "depth": {"depth": see("depth")},
    "classes": {"one_hot": see("segmentation"), "index": see("segmentation", one_hot=False)},
    "all": {"all": see(None)},
}
LOOK = """
import importlib.util, json, sys
import numpy as np
spec = importlib.util.spec_from_file_location("deploy", sys.argv[1])
deploy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(deploy)
folder = deploy.Path(sys.argv[2])
robot = deploy.Robot(folder, json.loads((folder / "policy.json").read_text()), [], 0)
pictures = []
for qpos in json.loads(sys.argv[3]):
    robot.data.qpos[:] = qpos
    pictures.append(robot.observe())
    robot.step += 1
assert "torch" not in sys.modules
np.savez(folder / "pictures.npz", **{name: np.stack([seen[name] for seen in pictures]) for name in pictures[0]})
"""

WEB = """
<mujoco><worldbody>
  <camera name="front" pos="0 0 3"/>
  <geom name="ball" size="0.2"/>
  <site name="a" pos="-1 0 0.5"/><site name="b" pos="1 0 0.5"/><site name="c" pos="0 1 0.5"/>
</worldbody>
<tendon>
  <spatial width="0.05"><site site="a"/><site site="b"/></spatial>
  <spatial width="0.05"><site site="b"/><site site="c"/></spatial>
  <spatial width="0.05"><site site="c"/><site site="a"/></spatial>
</tendon></mujoco>
"""
"""More tendons than geoms, all in view; one crosses the ball."""
LOOK_AT_WEB = """
import importlib.util, json, sys
import mujoco
import numpy as np
spec = importlib.util.spec_from_file_location("deploy", sys.argv[1])
deploy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(deploy)
model = mujoco.MjModel.from_xml_string(sys.argv[2])
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
camera = deploy.Camera(model, json.loads(sys.argv[3]))
depth, ball = camera.take_picture(data)
seen = {"share": (ball > 0).mean(), "nearest_m": 10 * depth.min(), "else_m": 10 * depth[ball == 0].min()}
print(json.dumps({name: float(value) for name, value in seen.items()}))
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported policy that reads every kind of image, and the state."""
    folder = tmp_path_factory.mktemp("vision")
    run_dir = train_vision(make_vision_task(make_vision_env(GROUPS), reads=("actor", *GROUPS)), folder)
    mjtrain.export(run_dir, observations=50)
    return run_dir / "export"


def look(env: Env, group: str) -> np.ndarray:
    """One frame of each term of a group, as the environment renders it. Shape (num_envs, channels, height, width)."""
    frames = [term.func(env, **term.params) for term in GROUPS[group].values()]
    if len({frame.dtype for frame in frames}) > 1:
        frames = [frame / 255 if frame.dtype == torch.uint8 else frame for frame in frames]
    return torch.cat(frames, dim=1).numpy()


def run_alone(*arguments: str | Path) -> str:
    """Run a script outside of the environment of the tests, drawing without a display."""
    environ = os.environ | {"MUJOCO_GL": os.environ.get("MUJOCO_GL", "egl")}
    command = [sys.executable, "-I", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_drawing
def test_its_pictures_are_those_of_the_environment(exported: Path) -> None:
    positions = [[0.0, 0.0], [0.3, 0.2], [-0.5, -0.4], [1.0, 0.9]]
    run_alone("-c", LOOK, SCRIPT, exported, json.dumps(positions))
    pictures = dict(np.load(exported / "pictures.npz"))
    env = make_env(make_vision_env(GROUPS), num_envs=len(positions))
    env.cameras.renderer.render(torch.tensor(positions))
    for name in GROUPS:
        seen = look(env, name)
        assert pictures[name].dtype == seen.dtype
        shown = pictures[name][:, -seen.shape[1] :]  # the last of the history
        assert shown.shape == seen.shape
        difference = np.abs(shown.astype(float) - seen.astype(float))
        span = 255.0 if name == "image" else 1.0
        assert difference.mean() < 0.02 * span, name
        assert seen.std() > 0.02 * span, name
    history = pictures["image"].reshape(len(positions), 3, 3, 32, 32)
    assert np.array_equal(history[0, 0], history[0, 2]), "an episode begins with the same frame everywhere"
    for step in (2, 3):
        assert np.array_equal(history[step, :2], history[step - 1, 1:])
        assert not np.array_equal(history[step, 2], history[step - 1, 2])


@needs_drawing
def test_it_sees_what_the_ray_caster_sees_and_no_tendons() -> None:
    frame = {
        "camera": "front",
        "streams": ["depth", "segmentation"],
        "width": 32,
        "height": 32,
        "interval": 1,
        "near_m": 0.01,
        "far_m": 10.0,
        "classes": {"ball": {"index": 1, "patterns": ["ball"]}},
        "shadows": False,
        "geom_groups": [0, 1, 2],
    }
    term = {"func": "camera", "params": {}, "scale": 1.0, "clip": None, "history": 1, "frame": frame}
    seen = json.loads(run_alone("-c", LOOK_AT_WEB, SCRIPT, WEB, json.dumps(term)))
    assert 0.01 < seen["share"] < 0.05
    assert seen["nearest_m"] == pytest.approx(2.8, abs=0.02), "the ball, and not a tendon before it"
    assert seen["else_m"] == pytest.approx(10.0, abs=1e-3)


@needs_drawing
@pytest.mark.parametrize("reads", [("image",), ("actor", *GROUPS)])
def test_it_runs_from_images_alone_and_from_images_beside_the_state(
    reads: tuple[str, ...], exported: Path, tmp_path: Path
) -> None:
    if reads == ("image",):
        run_dir = train_vision(make_vision_task(reads=reads), tmp_path)
        exported = Path(mjtrain.export(run_dir, observations=50).folder)
    report = json.loads(run_alone(SCRIPT, exported, "--seconds", "1"))
    assert report["seconds"] == 1.0
    assert report["hinge"] > 0


@pytest.mark.supports("deployment", task="Cartpole-Balance-Vision")
@needs_drawing
def test_a_policy_that_learned_from_the_ray_caster_balances_in_plain_mujoco(tmp_path: Path) -> None:
    shutil.copy(LEARNED, tmp_path)
    save_model(load_task("Cartpole-Balance-Vision").env, tmp_path / "model.mjb")
    for seed in (0, 1, 2):
        report = json.loads(run_alone(SCRIPT, tmp_path, "--seconds", "10", "--seed", str(seed)))
        assert report["hinge"] < 0.3, "rad, from upright"
        assert report["slider"] < 1.0, "m, from the middle"
