"""The arm with a gripper: what its model is made of, and a grasp that holds on both engines."""

from typing import Literal

import pytest
import torch

from mjtrain.catalog import load_task
from mjtrain.engines import make_engine
from support.envs import ENGINES

NUM_ENVS = 4
OVER = (2.8409, -1.3936, 2.256, -2.4332, -1.5708, -0.3007)
AROUND = (2.8409, -1.2414, 2.2988, -2.6282, -1.5708, -0.3007)
LIFTED = (3.0745, -1.5485, 1.7654, -1.7877, -1.5708, -0.0671)
OPEN, CLOSED = 0.04, 0.0


@pytest.mark.parametrize("name", ENGINES)
def test_a_grasp_by_waypoints_lifts_the_cube_and_holds_it_for_five_seconds(name: Literal["native", "warp"]) -> None:
    config = load_task("Arm-Lift-Cube").env
    engine = make_engine(name, config, NUM_ENVS, "cpu", num_threads=1)
    layout = engine.layout
    cube, arm = layout.qpos["cube"], slice(0, 6)
    yaw = torch.tensor([-0.6, 0.0, 0.3, 0.7])
    qpos = layout.default_qpos.expand(NUM_ENVS, -1).clone()
    qpos[:, cube.start + 3] = torch.cos(yaw / 2)
    qpos[:, cube.start + 6] = torch.sin(yaw / 2)
    engine.reset(torch.ones(NUM_ENVS, dtype=torch.bool), qpos, layout.default_qvel.expand(NUM_ENVS, -1))
    step_s = config.decimation * engine.model.opt.timestep

    def follow(joints: tuple[float, ...], opening: float, seconds: float) -> None:
        for _ in range(round(seconds / step_s)):
            speed = 5.0 * (torch.tensor(joints) - engine.state.qpos[:, arm])
            ctrl = torch.cat([speed.clamp(-1.0, 1.0), torch.full((NUM_ENVS, 1), opening)], dim=1)
            engine.step(ctrl, config.decimation)

    follow(OVER, OPEN, 1.2)
    follow(AROUND, OPEN, 0.8)
    follow(AROUND, CLOSED, 0.6)
    follow(LIFTED, CLOSED, 1.5)
    held = engine.state.qpos[:, cube.start : cube.start + 3].clone()
    assert (held[:, 2] > 0.25).all()
    follow(LIFTED, CLOSED, 5.0)
    moved = (engine.state.qpos[:, cube.start : cube.start + 3] - held).norm(dim=1)
    assert moved.max() < 0.005
    engine.close()
