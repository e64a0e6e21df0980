"""Both engines give the same pictures of the same state."""

from dataclasses import replace
from pathlib import Path

import gymnasium
import pytest
import torch

from mjtrain import OptionConfig
from mjtrain.config import CameraConfig, RobotConfig
from mjtrain.env.catalog import load_task
from mjtrain.sim.cameras.renderer import CameraRenderer
from mjtrain.sim.engines import make_engine

NUM_ENVS = 4
GYMNASIUM = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
ROBOTS = {
    "Cartpole-Balance": CameraConfig(camera="side", classes={"cart": ("cart",), "pole": ("pole",)}),
    "Quadruped-Velocity-Flat": CameraConfig(camera="follow", classes={"ground": ("ground",), "robot": (".*",)}),
    "ant.xml": CameraConfig(camera="track", classes={"floor": ("floor",), "robot": (".*",)}),
    "humanoid.xml": CameraConfig(camera="track", classes={"floor": ("floor",), "robot": (".*",)}),
}
"""A camera for each robot: of a task, or of a file that others wrote."""


@pytest.mark.supports("cameras", engine=("native", "warp"))
@pytest.mark.process
@pytest.mark.parametrize("robot", ROBOTS)
def test_native_and_warp_give_the_same_pictures_of_the_same_state(robot: str) -> None:
    if robot.endswith(".xml"):
        config = replace(
            load_task("Cartpole-Balance").env,
            robot=RobotConfig(file=str(GYMNASIUM / robot), options=OptionConfig(solver="Newton")),
        )
    else:
        config = load_task(robot).env
    camera = replace(ROBOTS[robot], streams=("rgb", "depth", "segmentation"), width=64, height=64)
    found = []
    for name in ("native", "warp"):
        engine = make_engine(name, config, NUM_ENVS, "cpu", 2)
        qpos = engine.layout.default_qpos + torch.linspace(-0.2, 0.1, NUM_ENVS)[:, None]
        qvel = torch.ones(NUM_ENVS, engine.state.qvel.shape[1])
        engine.reset(torch.ones(NUM_ENVS, dtype=torch.bool), qpos.float(), qvel)
        for _ in range(3):
            engine.step(engine.layout.default_ctrl.expand(NUM_ENVS, -1).float(), 2)
        renderer = CameraRenderer(engine.model, NUM_ENVS, {"test": camera}, device="cpu", num_threads=2)
        renderer.render(engine.state.qpos)
        renderer.close()
        engine.close()
        found.append(renderer.images["test"])
    native, warp = found
    assert not torch.equal(native["rgb"][0], native["rgb"][1])
    assert ((native["rgb"].int() - warp["rgb"].int()).abs() <= 2).float().mean() >= 0.999
    assert ((native["depth"] - warp["depth"]).abs() <= 1e-3).float().mean() >= 0.999
    classes = native["segmentation"].float()
    highest = torch.nn.functional.max_pool2d(classes, 3, 1, 1)
    inner = highest == -torch.nn.functional.max_pool2d(-classes, 3, 1, 1)
    assert (classes == warp["segmentation"])[inner].all(), "equal off edges"
