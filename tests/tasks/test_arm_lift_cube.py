"""The arm with a gripper: what its model is made of, and a grasp that holds on both engines."""

from typing import Literal

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.env.catalog import load_task
from mjtrain.sim.engines import make_engine
from mjtrain.sim.engines.base import Engine
from mjtrain.sim.engines.native import NativeEngine
from mjtrain_tasks.models import ARM, ARM_GRIPPER
from support.envs import ENGINES, make_env

OVER = (2.8409, -1.3936, 2.256, -2.4332, -1.5708, -0.3007)
AROUND = (2.8409, -1.2414, 2.2988, -2.6282, -1.5708, -0.3007)
LIFTED = (3.0745, -1.5485, 1.7654, -1.7877, -1.5708, -0.0671)
OPEN, CLOSED = 0.04, 0.0


def grasp(engine: Engine, step_s: float, *, jerk: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Grasp cubes of different yaw by waypoints, lift them and hold them for 5 s.

    Args:
        engine: Steps the worlds.
        step_s: Time between two controls.
        jerk: Standard deviation of noise on the joint speeds while the cube is lifted, in rad/s.

    Returns:
        Positions of the cubes in m, lifted, and after they were held. Shape (num_envs, 3).
    """
    layout, num_envs = engine.layout, engine.num_envs
    cube = layout.qpos["cube"].start
    yaw = torch.linspace(-0.78, 0.78, num_envs)
    qpos = layout.default_qpos.expand(num_envs, -1).clone()
    qpos[:, cube + 3], qpos[:, cube + 6] = torch.cos(yaw / 2), torch.sin(yaw / 2)
    engine.reset(torch.ones(num_envs, dtype=torch.bool), qpos, layout.default_qvel.expand(num_envs, -1))
    generator = torch.Generator().manual_seed(0)

    def follow(joints: tuple[float, ...], opening: float, seconds: float, jerk: float = 0.0) -> torch.Tensor:
        for _ in range(round(seconds / step_s)):
            speed = 5.0 * (torch.tensor(joints) - engine.state.qpos[:, :6])
            speed += jerk * torch.randn(speed.shape, generator=generator)
            ctrl = torch.cat([speed.clamp(-1.0, 1.0), torch.full((num_envs, 1), opening)], dim=1)
            engine.step(ctrl, 8)
        return engine.state.qpos[:, cube : cube + 3].clone()

    follow(OVER, OPEN, 1.2)
    follow(AROUND, OPEN, 0.8)
    follow(AROUND, CLOSED, 0.6)
    follow(LIFTED, CLOSED, 1.5, jerk)
    lifted = follow(LIFTED, CLOSED, 0.5)
    return lifted, follow(LIFTED, CLOSED, 5.0)


@pytest.mark.parametrize("name", ENGINES)
def test_a_grasp_by_waypoints_lifts_the_cube_and_holds_it_for_five_seconds(name: Literal["native", "warp"]) -> None:
    config = load_task("Arm-Lift-Cube").env
    engine = make_engine(name, config, 4, "cpu", num_threads=1)
    lifted, held = grasp(engine, 0.04)
    assert (lifted[:, 2] > 0.25).all()
    assert (held - lifted).norm(dim=1).max() < 1e-3
    if name == "warp":
        assert all(2 * buffer.find_need() <= buffer.size for buffer in engine.buffers.values())
        same_lifted, same_held = grasp(make_engine("native", config, 4, "cpu", num_threads=1), 0.04)
        assert (lifted - same_lifted).abs().max() < 1e-5
        assert (held - same_held).abs().max() < 3e-4


@pytest.mark.parametrize(("ls_iterations", "all_held"), [(20, False), (50, True)])
def test_a_jerky_lift_needs_a_line_search_that_comes_to_its_end(ls_iterations: int, all_held: bool) -> None:
    model = mujoco.MjModel.from_xml_path(str(ARM_GRIPPER))
    assert model.opt.ls_iterations == 50
    model.opt.ls_iterations = ls_iterations
    engine = NativeEngine(model, 12, num_threads=1)
    lifted, _ = grasp(engine, 0.04, jerk=0.5)
    assert (lifted[:, 2] > 0.25).all() == all_held
    engine.close()


def test_the_gripper_has_the_masses_and_lengths_that_its_maker_publishes() -> None:
    model = mujoco.MjModel.from_xml_path(str(ARM_GRIPPER))
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    mujoco.mj_forward(model, data)
    assert model.body("hand").mass[0] == 0.73
    assert model.body("left_finger").mass[0] == model.body("right_finger").mass[0] == 0.015
    hand, rotation = data.body("hand").xpos, data.body("hand").xmat.reshape(3, 3)
    np.testing.assert_allclose(rotation.T @ (data.site("tool").xpos - hand), (0, 0, 0.1034), atol=1e-9)
    tips = np.array([rotation.T @ (data.geom(f"{side}_tip").xpos - hand) for side in ("left", "right")])
    thickness = 2 * model.geom("left_tip").size[1]
    assert abs(tips[0, 1] - tips[1, 1] - thickness - 0.08) < 1e-4  # 80 mm apart when open
    np.testing.assert_allclose(tips.mean(axis=0), (0, 0, 0.0584 + 0.04525), atol=1e-9)
    np.testing.assert_allclose(2 * model.geom("left_tip").size, (0.0175, 0.0152, 0.0185), atol=1e-9)
    assert (model.jnt_range[model.joint("left_finger").id] == (0, 0.04)).all()


def test_the_arm_is_that_of_the_arm_without_a_gripper() -> None:
    bare, model = (mujoco.MjModel.from_xml_path(str(file)) for file in (ARM, ARM_GRIPPER))
    for body in range(1, bare.nbody):
        name = bare.body(body).name
        for field in ("pos", "quat", "mass", "inertia", "ipos"):
            assert (getattr(bare.body(name), field) == getattr(model.body(name), field)).all(), (name, field)
    for joint in range(bare.njnt):
        name = bare.joint(joint).name
        for field in ("range", "axis", "armature", "damping"):
            assert (getattr(bare.joint(name), field) == getattr(model.joint(name), field)).all(), (name, field)
        assert (bare.actuator(name).forcerange == model.actuator(name).forcerange).all()


def test_episodes_begin_with_an_open_gripper_above_a_cube_that_falls_to_the_ground() -> None:
    env = make_env(load_task("Arm-Lift-Cube").env, num_envs=500)
    cube = env.qpos("cube").clone()
    assert torch.allclose(cube[:, 2], torch.tensor(0.021))
    assert (cube[:, :2] >= torch.tensor([0.35, -0.2])).all()
    assert (cube[:, :2] <= torch.tensor([0.55, 0.2])).all()
    assert torch.allclose(env.qpos(("left_finger", "right_finger")), torch.full((500, 2), 0.04))
    assert (env.sensor("tool_position")[:, 2] > 0.1).all()
    assert not env.success("placed").any()
    for _ in range(3):
        env.step(torch.zeros(500, env.num_actions))
    moved = env.qpos("cube")[:, :3] - cube[:, :3]
    assert moved[:, :2].abs().max() < 1e-4
    assert ((moved[:, 2] > -1.2e-3) & (moved[:, 2] < -0.8e-3)).all()
