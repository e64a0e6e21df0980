"""The hand reaches a grasp and holds the cube against gravity, on both engines."""

from collections.abc import Callable

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.sim.engines.base import Engine
from mjtrain.sim.engines.native import NativeEngine
from mjtrain.sim.engines.warp import WarpEngine
from mjtrain_tasks.models import HAND

# m/s^2: palm down, then with the thumb and with the little finger at the bottom.
DIRECTIONS = ((0.0, 0.0, 9.81), (0.0, -9.81, 0.0), (0.0, 9.81, 0.0))
THUMB, FINGERS = ("TH_touch",), ("(FF|MF|RF|LF)_touch",)  # N


def native(model: mujoco.MjModel, num_envs: int) -> Engine:
    return NativeEngine(model, num_envs, num_threads=2)


def warp(model: mujoco.MjModel, num_envs: int) -> Engine:
    return WarpEngine(model, num_envs, device="cpu")


def seconds(model: mujoco.MjModel, duration: float) -> int:
    return round(duration / model.opt.timestep)


def cube_from_palm(engine: Engine) -> np.ndarray:
    """Return where the cube is, seen from the palm, in m. Shape (num_envs, 3)."""
    layout, state = engine.layout, engine.state
    offset = state.qpos[:, layout.qpos["cube"]][:, :3] - state.sensordata[:, layout.sensors["palm_position"]]
    places = []
    for world in range(engine.num_envs):
        palm = np.zeros(9)
        mujoco.mju_quat2Mat(palm, state.sensordata[world, layout.sensors["palm_orientation"]].double().numpy())
        places.append(palm.reshape(3, 3).T @ offset[world].double().numpy())
    return np.array(places)


@pytest.mark.parametrize("make", [native, warp])
def test_cube_rests_in_the_hand(make: Callable[[mujoco.MjModel, int], Engine]) -> None:
    model = mujoco.MjModel.from_xml_path(str(HAND))
    engine = make(model, 1)
    home = model.key("home")
    engine.reset(torch.tensor([True]), torch.tensor(home.qpos).float()[None], torch.zeros(1, model.nv))
    engine.step(torch.tensor(home.ctrl).float()[None], seconds(model, 2.0))
    assert engine.state.qpos[0].numpy() == pytest.approx(home.qpos, abs=0.02)
    assert engine.state.qvel.abs().max() < 0.05


@pytest.mark.parametrize("make", [native, warp])
def test_grasp_holds_the_cube_whatever_is_down(make: Callable[[mujoco.MjModel, int], Engine]) -> None:
    model = mujoco.MjModel.from_xml_path(str(HAND))
    num_joints = model.nu + 4
    num_envs = 2 * len(DIRECTIONS)
    engine = make(model, num_envs)
    grasps = torch.arange(num_envs) < len(DIRECTIONS)
    home, grasp = model.key("home"), model.key("grasp")
    engine.reset(
        torch.ones(num_envs, dtype=torch.bool),
        torch.tensor(home.qpos).float().expand(num_envs, -1),
        torch.zeros(num_envs, model.nv),
    )
    ctrl = torch.where(grasps[:, None], torch.tensor(grasp.ctrl).float(), torch.tensor(home.ctrl).float())
    engine.step(ctrl, seconds(model, 1.5))
    reached = engine.state.qpos[grasps, :num_joints].numpy()
    assert np.abs(reached - grasp.qpos[:num_joints]).max() < 0.1
    thumb, fingers = (engine.state.sensordata[:, engine.layout.sensors.select(names)] for names in (THUMB, FINGERS))
    assert (thumb[grasps] > 0.5).all()
    assert ((fingers[grasps] > 0.5).sum(dim=1) >= 2).all()
    before = cube_from_palm(engine)

    engine.expand("gravity").copy_(torch.tensor(DIRECTIONS * 2))
    ctrl = torch.where(grasps[:, None], torch.tensor(grasp.ctrl).float(), torch.zeros(model.nu))
    engine.step(ctrl, seconds(model, 5.0))
    moved = np.linalg.norm(cube_from_palm(engine) - before, axis=1)
    assert moved[grasps].max() < 0.01
    assert moved[~grasps].min() > 0.2
