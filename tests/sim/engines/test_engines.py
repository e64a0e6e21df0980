"""What the environment relies on, of both engines."""

import re
from collections.abc import Callable

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.config import EnvConfig
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.drawing.scene import body_poses
from mjtrain.sim.engines import make_engine, resolve_engine
from mjtrain.sim.engines.base import Engine
from mjtrain.sim.engines.native import NativeEngine
from mjtrain.sim.engines.native_on_device import NativeOnDevice
from mjtrain.sim.engines.warp import WarpEngine
from mjtrain.sim.robots.kinematics import ForwardKinematics
from support.models import ALL
from support.scenes import HANGING

NUM_ENVS = 5

ENGINES: dict[str, Callable[[mujoco.MjModel], Engine]] = {
    "native": lambda model: NativeEngine(model, NUM_ENVS, num_threads=2),
    "native, copied": lambda model: NativeOnDevice(model, NUM_ENVS, device="cpu", num_threads=2),
    "warp": lambda model: WarpEngine(model, NUM_ENVS, device="cpu"),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param](mujoco.MjModel.from_xml_string(ALL["contact_rich"]))


def snapshot(engine: Engine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in vars(engine.state).items()}


def test_shapes_and_types(engine: Engine) -> None:
    shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in vars(engine.state).items()}
    assert shapes == {
        "qpos": ((NUM_ENVS, 9), torch.float32),
        "qvel": ((NUM_ENVS, 8), torch.float32),
        "act": ((NUM_ENVS, 0), torch.float32),
        "ctrl": ((NUM_ENVS, 2), torch.float32),
        "sensordata": ((NUM_ENVS, 12), torch.float32),
        "time": ((NUM_ENVS,), torch.float32),
    }


def test_the_state_keeps_its_storage(engine: Engine) -> None:
    before = {name: tensor.data_ptr() for name, tensor in vars(engine.state).items()}
    engine.step(torch.zeros(NUM_ENVS, 2), 3)
    engine.reset(torch.ones(NUM_ENVS, dtype=torch.bool), engine.state.qpos.clone(), engine.state.qvel.clone())
    assert {name: tensor.data_ptr() for name, tensor in vars(engine.state).items()} == before


def test_a_masked_reset_leaves_the_other_worlds_untouched(engine: Engine) -> None:
    engine.step(torch.full((NUM_ENVS, 2), 0.4), 5)
    before = snapshot(engine)
    mask = torch.tensor([False, True, False, True, False])
    qpos = engine.layout.default_qpos.repeat(NUM_ENVS, 1)
    qpos[:, 2] += 0.3
    engine.reset(mask, qpos, torch.full((NUM_ENVS, 8), 0.1))
    after = snapshot(engine)
    for name in before:
        assert torch.equal(after[name][~mask], before[name][~mask]), name
    assert torch.equal(after["qpos"][mask], qpos[mask])
    assert (after["qvel"][mask] == 0.1).all()
    assert (after["time"][mask] == 0).all()
    assert (after["ctrl"][mask] == 0).all()
    assert torch.allclose(engine.state.sensordata[:, engine.layout.sensors["trunk_position"]][mask], qpos[mask, :3])


def test_a_reset_does_not_change_how_the_other_worlds_go_on(engine: Engine) -> None:
    model = mujoco.MjModel.from_xml_string(ALL["contact_rich"])
    twin = ENGINES["warp" if isinstance(engine, WarpEngine) else "native"](model)
    ctrl = torch.full((NUM_ENVS, 2), 0.4)
    mask = torch.tensor([True, False, False, False, False])
    for step in range(20):
        engine.step(ctrl, 4)
        twin.step(ctrl, 4)
        if step == 10:
            engine.reset(mask, engine.layout.default_qpos.repeat(NUM_ENVS, 1), torch.zeros(NUM_ENVS, 8))
    assert torch.equal(engine.state.qpos[~mask], twin.state.qpos[~mask])
    assert not torch.equal(engine.state.qpos[mask], twin.state.qpos[mask])


def test_an_empty_mask_changes_nothing(engine: Engine) -> None:
    engine.step(torch.full((NUM_ENVS, 2), 0.4), 5)
    before = snapshot(engine)
    engine.reset(torch.zeros(NUM_ENVS, dtype=torch.bool), engine.state.qpos * 0, engine.state.qvel * 0)
    for name, tensor in snapshot(engine).items():
        assert torch.equal(tensor, before[name]), name


def test_the_number_of_threads_does_not_matter() -> None:
    model = mujoco.MjModel.from_xml_string(ALL["contact_rich"])
    one, two = (NativeEngine(model, NUM_ENVS, num_threads=num_threads) for num_threads in (1, 2))
    for _ in range(50):
        one.step(torch.full((NUM_ENVS, 2), 0.3), 4)
        two.step(torch.full((NUM_ENVS, 2), 0.3), 4)
    assert torch.equal(one.state.qpos, two.state.qpos)


def test_layout_names_what_the_model_has() -> None:
    layout = ENGINES["native"](mujoco.MjModel.from_xml_string(ALL["contact_rich"])).layout
    assert layout.qpos == {"root": slice(0, 7), "front_hip": slice(7, 8), "rear_hip": slice(8, 9)}
    assert layout.qvel == {"root": slice(0, 6), "front_hip": slice(6, 7), "rear_hip": slice(7, 8)}
    assert layout.actuators == {"front_hip": 0, "rear_hip": 1}
    assert layout.sensors["trunk_orientation"] == slice(6, 10)
    assert layout.timestep_s == 0.002
    with pytest.raises(RequestError, match="no sensor 'nose'; it has gyro, "):
        layout.sensors["nose"]


def test_an_actuator_without_a_name_is_the_users_error() -> None:
    nameless = ALL["contact_rich"].replace('<position name="rear_hip"', "<position")
    with pytest.raises(RequestError, match=r"actuator 1 of 2 has no name \(it drives joint 'rear_hip'\)"):
        ENGINES["native"](mujoco.MjModel.from_xml_string(nameless))


def test_joints_and_sensors_without_a_name_are_left_out() -> None:
    nameless = ALL["contact_rich"].replace('<gyro name="gyro"', "<gyro")
    layout = ENGINES["native"](mujoco.MjModel.from_xml_string(nameless)).layout
    assert set(layout.sensors) == {"trunk_position", "trunk_orientation", "front_touch", "front_angle"}
    assert layout.sensors["trunk_position"] == slice(3, 6)


def test_warp_refuses_what_its_reset_would_not_clear() -> None:
    delayed = ALL["smooth"].replace('<motor name="shoulder"', '<motor nsample="4" delay="0.01" name="shoulder"')
    with pytest.raises(RequestError, match="--engine warp: does not carry delays"):
        ENGINES["warp"](mujoco.MjModel.from_xml_string(delayed))


LATE = """<mujoco>
  <compiler angle="radian"/>
  <worldbody><body name="arm"><joint name="j" axis="0 1 0"/><geom size=".05" pos=".2 0 0"/></body></worldbody>
  <actuator><position name="a" joint="j" kp="20" kv="1" delay="0.01" nsample="6"/></actuator>
  <sensor><jointpos name="angle" joint="j" delay="0.01" nsample="7" interp="cubic"/>
    <framezaxis name="up" objtype="xbody" objname="arm" delay="0.01" nsample="7"/>
    <subtreecom name="centre" body="arm" delay="0.01" nsample="7" interp="linear"/>
    <jointpos name="rare" joint="j" interval="0.01 -0.004" nsample="2"/></sensor>
  <keyframe><key name="home" time="3" qpos="0.7" ctrl="0.6"/></keyframe>
</mujoco>"""


@pytest.mark.parametrize("name", ["native", "native, copied"])
def test_a_reset_world_was_at_rest_for_its_delays(name: str) -> None:
    without = re.sub(' (delay|interval|nsample|interp)="[^"]*"', "", LATE)
    late, prompt = (ENGINES[name](mujoco.MjModel.from_xml_string(text)) for text in (LATE, without))
    home, everywhere = late.layout.default_ctrl.expand(NUM_ENVS, -1), torch.ones(NUM_ENVS, dtype=torch.bool)
    assert torch.equal(late.state.sensordata, prompt.state.sensordata)
    mask = torch.tensor([False, True, False, True, True])
    for engine in (late, prompt):
        engine.expand("body_ipos")[:, 1, 0] += 0.05 * torch.arange(NUM_ENVS)
        engine.refresh_model(everywhere)
        for _ in range(9):
            engine.step(home + 0.3, 1)
    before = late.state_dict()["rows"]["history"]
    readings = late.state.sensordata.clone()
    for engine in (late, prompt):
        engine.reset(mask, torch.full((NUM_ENVS, 1), 0.4), torch.full((NUM_ENVS, 1), 0.1))
    assert torch.equal(late.state_dict()["rows"]["history"][~mask], before[~mask])
    assert torch.equal(late.state.sensordata[~mask], readings[~mask])
    assert torch.equal(late.state.sensordata[mask], prompt.state.sensordata[mask])
    seen = [prompt.state.sensordata[mask, :7].clone()] * 5  # all but the last, which is not late but rare
    for _ in range(8):
        late.step(home, 1)
        prompt.step(home, 1)
        seen.append(prompt.state.sensordata[mask, :7].clone())
        assert torch.equal(late.state.qpos[mask], prompt.state.qpos[mask])
        assert torch.allclose(late.state.sensordata[mask, :7], seen[-6], atol=1e-6)


def test_the_home_keyframe_is_the_default_pose() -> None:
    layout = ENGINES["native"](mujoco.MjModel.from_xml_string(ALL["smooth"])).layout
    assert torch.allclose(layout.default_qpos, torch.tensor([0.3, -0.5]))


def test_which_engine_runs_where() -> None:
    assert resolve_engine("auto", "cpu") == "native"
    assert resolve_engine("auto", "cuda:1") == "warp"
    assert resolve_engine("warp", "cpu") == "warp"
    assert resolve_engine("native", "cuda:0") == "native"


def test_a_broken_model_is_the_users_error(tmp_path) -> None:
    robot = tmp_path / "robot.xml"
    robot.write_text("<mujoco><worldbody><body><geom/></body></worldbody></mujoco>")
    config = EnvConfig(
        robot=str(robot), decimation=1, episode_length_s=1, actions={}, observations={}, rewards={}, terminations={}
    )
    with pytest.raises(RequestError, match=r"--env\.robot .*robot\.xml"):
        make_engine("native", config, 1, "cpu", 1)


@pytest.mark.supports("parity", engine="warp")
@pytest.mark.gpu
def test_the_cuda_graph_follows_the_cpu() -> None:
    model = mujoco.MjModel.from_xml_string(ALL["contact_rich"])
    gpu, cpu = WarpEngine(model, NUM_ENVS, device="cuda:0"), WarpEngine(model, NUM_ENVS, device="cpu")
    ctrl = torch.full((NUM_ENVS, 2), 0.3)
    mask = torch.tensor([True, False, False, True, False])
    for step in range(20):
        gpu.step(ctrl.cuda(), 4)
        cpu.step(ctrl, 4)
        if step == 10:
            for engine in (gpu, cpu):
                qpos = engine.layout.default_qpos.repeat(NUM_ENVS, 1)
                engine.reset(mask.to(engine.device), qpos, torch.zeros(NUM_ENVS, 8, device=engine.device))
    assert torch.allclose(gpu.state.qpos.cpu(), cpu.state.qpos, atol=1e-4)
    assert torch.allclose(gpu.state.sensordata.cpu(), cpu.state.sensordata, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("name", ENGINES)
def test_mocap_bodies_are_where_the_engine_has_them(name: str) -> None:
    engine = ENGINES[name](mujoco.MjModel.from_xml_string(HANGING))
    sensors, arm = engine.layout.sensors, engine.layout.bodies["arm"]
    qpos = engine.state.qpos + torch.linspace(-1, 1, NUM_ENVS)[:, None]
    engine.reset(torch.ones(NUM_ENVS, dtype=torch.bool), qpos, torch.ones(NUM_ENVS, 1))
    seen = {name: engine.state.sensordata[:, sensors[name]] for name in ("arm", "arm_turn", "arm_speed")}
    assert (seen["arm"][:, 2] > 1.5).all(), "not below the floor"
    states = ForwardKinematics(engine.model, "cpu", torch.float32).compute(qpos, engine.state.qvel).select(arm)
    for field, sensor in (("positions", "arm"), ("quaternions", "arm_turn"), ("linear_velocities", "arm_speed")):
        assert torch.allclose(getattr(states, field), seen[sensor], atol=1e-5), field
    shown = body_poses(engine.model, qpos.numpy(), np.array([arm]))[:, 0]
    assert shown == pytest.approx(torch.cat([seen["arm"], seen["arm_turn"]], dim=1).numpy(), abs=1e-5)
