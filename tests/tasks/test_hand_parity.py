"""The hand moves the cube alike on both engines.

Over many env steps trajectories part, as those of mj_step do where it starts from rounded numbers. So the engines are
compared over one env step at a time, from the same states.
"""

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.env.catalog import load_task
from mjtrain.sim.engines.native import NativeEngine
from mjtrain.sim.engines.warp import WarpEngine
from mjtrain_tasks.models import HAND

NUM_ENVS = 8
DECIMATION = load_task("Hand-Reorient-Cube").env.decimation
STEPS = 30


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(HAND))


def controls(model: mujoco.MjModel) -> torch.Tensor:
    """Draw controls around the pose at home, which move the cube in the hand. Shape (STEPS, NUM_ENVS, nu)."""
    low, high = model.actuator_ctrlrange.T
    spread = 0.15 * (high - low) * np.random.default_rng(0).uniform(-1, 1, (STEPS, NUM_ENVS, model.nu))
    return torch.tensor(np.clip(model.key("home").ctrl + spread, low, high)).float()


def start(model: mujoco.MjModel) -> tuple[torch.Tensor, torch.Tensor]:
    qpos = torch.tensor(model.key("home").qpos).float().repeat(NUM_ENVS, 1)
    return qpos, torch.zeros(NUM_ENVS, model.nv)


def test_native_is_a_loop_of_mj_step(model: mujoco.MjModel) -> None:
    engine = NativeEngine(model, NUM_ENVS, num_threads=2, dtype=torch.float64)
    qpos, qvel = start(model)
    engine.reset(torch.ones(NUM_ENVS, dtype=torch.bool), qpos.double(), qvel.double())
    worlds = [mujoco.MjData(model) for _ in range(NUM_ENVS)]
    for world, data in enumerate(worlds):
        data.qpos[:] = qpos[world]
        mujoco.mj_forward(model, data)
    for ctrl in controls(model).double():
        engine.step(ctrl, DECIMATION)
        for world, data in enumerate(worlds):
            data.ctrl[:] = ctrl[world]
            for _ in range(DECIMATION):
                mujoco.mj_step(model, data)
    assert np.array_equal(engine.state.qpos.numpy(), np.stack([data.qpos for data in worlds]))
    assert np.array_equal(engine.state.sensordata.numpy(), np.stack([data.sensordata for data in worlds]))


@pytest.mark.supports("parity", task="Hand-Reorient-Cube", engine="warp")
def test_warp_moves_as_native_in_each_env_step(model: mujoco.MjModel) -> None:
    everywhere = torch.ones(NUM_ENVS, dtype=torch.bool)
    native = NativeEngine(model, NUM_ENVS, num_threads=2)
    warp = WarpEngine(model, NUM_ENVS, device="cpu")
    qpos, qvel = start(model)
    differences, movements = [], []
    for ctrl in controls(model):
        for engine in (native, warp):  # both without a warm start of the solver
            engine.reset(everywhere, qpos, qvel)
            engine.step(ctrl, DECIMATION)
        differences.append((warp.state.qpos - native.state.qpos).abs().amax(dim=1))
        movements.append((native.state.qpos - qpos).abs().amax(dim=1))
        qpos, qvel = native.state.qpos.clone(), native.state.qvel.clone()
    difference, movement = torch.cat(differences), torch.cat(movements)
    assert movement.median() > 0.03  # rad: it does move
    assert difference.median() < 2e-6
    assert difference.max() < 1e-4
