"""A robot of somebody else is completed by its config; its file stays as it is."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.config import (
    ActionTerm,
    ActuatorConfig,
    EnvConfig,
    GeomConfig,
    KeyframeConfig,
    LightConfig,
    MountedCameraConfig,
    NamesConfig,
    OptionConfig,
    RobotConfig,
    SensorConfig,
    SiteConfig,
    TerrainConfig,
    from_plain,
    to_plain,
)
from mjtrain.mdp import randomization, startup_event
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.completion.sensors import OBJECTS
from mjtrain.sim.robots.model import load_model
from mjtrain.sim.robots.robot_bundle import list_differences
from support.envs import ENGINES, make_env

VENDOR = """
<mujoco model="vendor">
  <compiler angle="degree"/>
  <option timestep="0.002" integrator="RK4"><flag contact="disable"/></option>
  <default><joint damping="1" armature="0.1"/><geom contype="1" conaffinity="1"/></default>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 0.1"/>
    <body name="torso" pos="0 0 0.6">
      <freejoint name="root"/>
      <camera name="track" mode="trackcom" pos="0 -3 0"/>
      <geom name="torso" type="box" size="0.2 0.1 0.05" mass="5"/>
      <body name="left" pos="0 0.1 0">
        <joint name="left_hip_joint" axis="0 1 0" range="-60 60"/>
        <geom name="left_leg" type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03" mass="1"/>
        <body pos="0 0 -0.3">
          <joint name="left_knee_joint" axis="0 1 0" range="-120 -10"/>
          <geom name="left_foot" type="sphere" size="0.04" pos="0 0 -0.25" mass="0.3"/>
        </body>
      </body>
      <body name="right" pos="0 -0.1 0">
        <joint name="right_hip_joint" axis="0 1 0" range="-60 60"/>
        <geom name="right_leg" type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03" mass="1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="left_hip_joint" gear="20"/>
    <motor joint="left_knee_joint" gear="20"/>
    <position joint="left_knee_joint" kp="3"/>
    <position name="right" joint="right_hip_joint" kp="7"/>
  </actuator>
  <sensor>
    <actuatorfrc name="right_force" actuator="right"/>
    <framepos name="torso_pos" objtype="body" objname="torso"/>
  </sensor>
  <keyframe>
    <key name="stand" qpos="0 0 0.55 1 0 0 0 0.2 -0.4 0.1" ctrl="0.1 0.2 0.3 0.4"/>
    <key name="home" qpos="0 0 0.9 1 0 0 0 0 0 0"/>
  </keyframe>
</mujoco>
"""
LEGS = ActuatorConfig(joints=(".*_(hip|knee)_joint",), kp=30.0, kv=1.0, force_range=(-20.0, 20.0), armature=0.02)


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    path = tmp_path / "vendor.xml"
    path.write_text(VENDOR)
    return path


def env_of(robot: Any, **changes: Any) -> EnvConfig:
    empty: dict[str, Any] = {"actions": {"all": ActionTerm()}, "observations": {}, "rewards": {}, "terminations": {}}
    return EnvConfig(**{"robot": robot, "decimation": 2, "episode_length_s": 1.0, **empty, **changes})


def load(file: Path, **fields: Any) -> Any:
    return load_model(env_of(RobotConfig(file=str(file), **fields)))


def names_of(model: Any, kind: str) -> list[str]:
    count = {"actuator": model.nactuator, "joint": model.njnt, "camera": model.ncam, "light": model.nlight}[kind]
    return [getattr(model, kind)(index).name for index in range(count)]


def test_a_config_that_only_names_a_file_changes_names_of_actuators_only(vendor: Path) -> None:
    named = load(vendor)
    assert names_of(named, "actuator") == [
        "left_hip_joint",
        "left_knee_joint",
        "left_knee_joint_position",
        "right",
    ]
    differing = list_differences(mujoco.MjModel.from_xml_path(str(vendor)), named)
    assert set(differing) <= {"names", "names_map", "nnames", "name_actuatoradr", "nnames_map"} | {
        name for name in differing if name.startswith("name_")
    }


def test_the_file_is_untouched_and_two_loads_are_equal(vendor: Path) -> None:
    fields = {"actuators": {"legs": LEGS}, "keyframe": "stand", "self_collision": False, "timestep": 0.004}
    assert list_differences(load(vendor, **fields), load(vendor, **fields)) == []
    assert vendor.read_text() == VENDOR


@pytest.mark.parametrize("given", ["text", "path", "module", "function", "config"])
def test_what_python_may_give_as_the_robot(given: str, vendor: Path) -> None:
    class Description:  # as the modules of robot_descriptions are
        MJCF_PATH = str(vendor)

    def build() -> Any:
        return mujoco.MjSpec.from_file(str(vendor))

    robots = {
        "text": str(vendor),
        "path": vendor,
        "module": Description,
        "function": build,
        "config": RobotConfig(file=str(vendor)),
    }
    config = env_of(robots[given])
    assert isinstance(config.robot, RobotConfig)
    assert config.robot.file == ("" if given == "function" else str(vendor))
    assert list_differences(load_model(config), load(vendor)) == []
    assert RobotConfig(file=robots[given]) == config.robot if given != "config" else True


def test_something_else_as_the_robot_is_refused() -> None:
    with pytest.raises(TypeError, match="the robot is 3; give a path, a RobotConfig, a module with MJCF_PATH or a "):
        env_of(3)


@pytest.mark.parametrize("given", [mujoco.MjSpec(), partial(mujoco.MjSpec.from_string, "<mujoco/>")])
def test_a_robot_without_a_file_and_a_name_is_refused(given: Any) -> None:
    for make in (env_of, lambda robot: env_of(RobotConfig(spec=robot))):
        with pytest.raises(TypeError, match=r"the robot is .*; give a path, .* or a function that returns an mujoco"):
            make(given)


def test_a_file_in_the_place_of_the_function_is_the_file(vendor: Path) -> None:
    for place in (vendor, str(vendor)):
        given: Any = place
        assert RobotConfig(spec=given) == RobotConfig(file=str(vendor))


FUSED = """
<mujoco>
  <compiler fusestatic="true" discardvisual="true"/>
  <worldbody><body name="a" pos="0 0 1">
    <freejoint/>
    <geom size="0.1"/>
    <geom name="seen" type="box" size="0.1 0.2 0.3" contype="0" conaffinity="0" group="1"/>
    <body name="s" pos="0 0 0.5">
      <geom size="0.1"/>
      <body name="l" pos="0 0 0.3"><joint name="j"/><geom size="0.1"/></body>
    </body>
  </body></worldbody>
</mujoco>
"""


def test_parts_that_a_compilation_removes_are_not_completed(tmp_path: Path) -> None:
    """Else what is beside them would get another place or shape."""
    file = tmp_path / "fused.xml"
    file.write_text(FUSED)
    with pytest.raises(RequestError, match="locked-joints: body l of joint j is in a <frame>"):
        load(file, locked_joints=("j",))
    with pytest.raises(RequestError, match=r"sensors\.t\.object seen: the file has discardvisual"):
        load(file, sensors={"t": SensorConfig(type="touch", object="seen")})


def test_a_sensor_on_a_body_needs_a_name_that_no_site_has(tmp_path: Path) -> None:
    (file := tmp_path / "site.xml").write_text(
        '<mujoco><worldbody><body name="a"><freejoint/><geom size="0.1"/><site name="imu"/></body></worldbody></mujoco>'
    )
    words = "object a: would add a site named imu there, and the robot has one of this name; give the sensor another"
    with pytest.raises(RequestError, match=words):
        load(file, sensors={"imu": SensorConfig(type="gyro", object="a")})
    assert load(file, sensors={"imu": SensorConfig(type="gyro", object="imu")}).nsensor == 1


def test_sensors_measure_what_they_say(vendor: Path) -> None:
    sensors = {
        "position": SensorConfig(type="framepos", object="torso"),
        "up": SensorConfig(type="framezaxis", object="torso"),
        "velocity": SensorConfig(type="framelinvel", object="torso", reference="torso"),
        "body_velocity": SensorConfig(type="velocimeter", object="torso", object_type="xbody"),
        "rate": SensorConfig(type="frameangvel", object="torso"),
        "foot": SensorConfig(type="framepos", object="left_foot"),
        "foot_in_torso": SensorConfig(type="framepos", object="left_foot", reference="torso", reference_type="xbody"),
        "pressure": SensorConfig(type="touch", object="left_foot"),
        "found": SensorConfig(type="contact", object="left_foot", reference="floor", data=("found", "force")),
        "knee": SensorConfig(type="jointpos", object="left_knee_joint"),
        "torque": SensorConfig(type="actuatorfrc", object="left_knee_joint", cutoff=0.5),
        "energy": SensorConfig(type="kinetic"),
    }
    pose = KeyframeConfig(joints={".*_joint": 0.0}, height=0.58)
    options = OptionConfig(enable=("contact",), gravity=(0.0, 0.0, -5.0))
    robot = RobotConfig(file=str(vendor), sensors=sensors, keyframes={"home": pose}, options=options)
    env = make_env(env_of(robot), num_envs=1)

    def read(name: str) -> list[float]:
        return env.sensor(name)[0].tolist()

    assert read("position") == pytest.approx([0, 0, 0.58])
    assert read("up") == pytest.approx([0, 0, 1])
    assert read("foot") == pytest.approx([0, 0.1, 0.03], abs=1e-6)
    assert read("foot_in_torso") == pytest.approx([0, 0.1, -0.55], abs=1e-6)
    assert read("pressure")[0] > 0
    found, *force = read("found")
    assert found == 1.0
    assert force[0] == pytest.approx(read("pressure")[0], rel=1e-4)  # the normal force comes first
    env.engine.set_qvel(torch.ones(1, dtype=torch.bool), torch.tensor([[0.5, 0, 0, 0, 0, 2.0, 0, 0, 0]]))
    env.engine.step(torch.full((1, 4), 0.1), 1)
    env.engine.step(torch.full((1, 4), 0.1), 1)
    assert read("body_velocity")[0] == pytest.approx(0.5, abs=0.05)
    assert read("rate")[2] == pytest.approx(2.0, abs=0.2)
    assert read("torque") == [pytest.approx(0.1)]
    assert read("energy")[0] > 0


def test_every_type_of_sensor_compiles(vendor: Path) -> None:
    text = VENDOR.replace(
        "<actuator>", '<tendon><fixed name="t"><joint joint="left_hip_joint" coef="1"/></fixed></tendon><actuator>'
    )
    text = (
        text.replace(
            '<body name="right"',
            '<body name="ball"><joint name="ball" type="ball"/><geom size="0.1"/></body><body name="right"',
        )
        .replace("0.2 -0.4 0.1", "0.2 -0.4 1 0 0 0 0.1")
        .replace('0 0 0"/>', '0 0 1 0 0 0 0"/>')
    )
    vendor.write_text(text)
    objects = {"site": "torso", "joint": "left_hip_joint", "tendon": "t", "actuator": "right", "xbody": "torso"}
    references = {
        "camprojection": "track",
        "insidesite": "spot",
        **dict.fromkeys(("distance", "normal", "fromto"), "floor"),
    }
    for kind, kinds in OBJECTS.items():
        name = "" if not kinds else objects.get(kinds[0], "left_leg")
        if kind.startswith("ball"):
            name = "ball"
        elif kind.startswith("tendonlimit"):
            continue  # MuJoCo wants a tendon with a limit
        sensor = SensorConfig(type=kind, object=name, reference=references.get(kind, ""))
        model = load(vendor, sensors={"new": sensor}, sites={"spot": SiteConfig(body="torso")})
        assert model.sensor("new").dim[0] >= 1, kind


def test_a_sensor_of_the_same_name_is_replaced(vendor: Path) -> None:
    model = load(vendor, sensors={"torso_pos": SensorConfig(type="framezaxis", object="torso")})
    assert model.nsensor == 2
    assert model.sensor("torso_pos").type[0] == mujoco.mjtSensor.mjSENS_FRAMEZAXIS


def test_actuators_are_replaced_on_the_joints_that_match(vendor: Path) -> None:
    model = load(vendor, actuators={"legs": LEGS}, keyframe="stand")
    assert names_of(model, "actuator") == ["left_hip_joint", "left_knee_joint", "right_hip_joint"]
    assert model.actuator_gainprm[:, 0].tolist() == [30.0] * 3
    assert model.actuator_biasprm[:, :3].tolist() == [[0.0, -30.0, -1.0]] * 3
    assert model.actuator_forcerange.tolist() == [[-20.0, 20.0]] * 3
    assert np.allclose(model.actuator_ctrlrange, np.radians([[-60, 60], [-120, -10], [-60, 60]]))
    assert model.dof_armature[6:].tolist() == [0.02] * 3
    assert model.dof_damping[6:].tolist() == [1.0] * 3
    assert model.sensor("right_force").objid[0] == 2  # the sensor of the file measures the new actuator
    assert np.allclose(model.key("home").ctrl, [0.2, -0.4, 0.1])  # which hold the pose


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["position", "motor"])
def test_a_motor_gets_weaker_with_its_speed(kind: str, engine: str, vendor: Path) -> None:
    """Stall torque 30 N m, no torque from 10 rad/s on, and at most 25 N m."""
    gains = {"kp": 1000.0, "kv": 2.0} if kind == "position" else {}
    curve = {"stall_torque": 30.0, "no_load_speed": 10.0, "force_range": (-25.0, 25.0)}
    config = env_of(
        RobotConfig(
            file=str(vendor),
            actuators={"legs": ActuatorConfig(joints=(".*_joint",), type=kind, **gains, **curve)},  # pyright: ignore
            sensors={"torque": SensorConfig(type="actuatorfrc", object="left_hip_joint")},
            keyframe="stand",
        )
    )
    env = make_env(config, num_envs=6, engine=engine)
    if kind == "position":
        assert np.allclose(env.engine.model.key("home").ctrl, [0.2, -0.4, 0.1])
        assert np.allclose(env.engine.model.actuator("left_hip_joint").ctrlrange, np.radians([-60, 60]))
    assert env.engine.model.na == 0
    speeds = torch.tensor([0.0, 2.0, 5.0, 9.0, 12.0, -4.0])
    qpos, qvel = env.state.qpos.clone(), torch.zeros_like(env.state.qvel)
    place = env.engine.layout.qvel["left_hip_joint"].start
    qvel[:, place] = speeds
    ctrl = env.engine.layout.default_ctrl.repeat(6, 1)
    ctrl[:, 0] = 100.0 if kind == "motor" else ctrl[:, 0] + 0.5
    env.engine.reset(torch.ones(6, dtype=torch.bool), qpos, qvel)
    env.engine.step(ctrl, 1)
    expected = (30.0 * (1 - speeds / 10.0)).clamp(max=25.0)
    assert torch.allclose(env.sensor("torque")[:, 0], expected, atol=1e-3)
    ctrl[:, 0] = 3.0 if kind == "motor" else env.engine.layout.default_ctrl[0] + 0.003
    env.engine.reset(torch.ones(6, dtype=torch.bool), qpos, qvel)
    env.engine.step(ctrl, 1)
    asked = 3.0 - (2.0 if kind == "position" else 0.0) * speeds
    bounds = 30.0 * (-1 - speeds / 10.0), 30.0 * (1 - speeds / 10.0)
    assert torch.allclose(env.sensor("torque")[:, 0], asked.clamp(*bounds), atol=1e-2), (
        "what is asked for, within reach"
    )


def test_gains_of_motors_with_a_limit_at_each_speed_are_randomised_too(vendor: Path) -> None:
    legs = ActuatorConfig(joints=(".*_joint",), kp=100.0, kv=2.0, stall_torque=30.0, no_load_speed=10.0)
    event = startup_event(randomization.actuator_gains, actuators=(".*",), factor=(0.5, 0.8), kv_factor=(2.0, 3.0))
    env = make_env(env_of(RobotConfig(file=str(vendor), actuators={"legs": legs}), events={"gains": event}))
    gain = env.engine.expand("actuator_gainprm") / env.engine.layout.nominal["actuator_gainprm"]
    assert (gain[..., :2] == 1).all(), "resistance and motor constant"
    assert (gain[..., 7] == 1).all(), "voltage"
    assert (gain[..., 4] <= 0.8).all()
    assert (gain[..., 6] >= 2.0).all()
    assert torch.equal(env.engine.expand("actuator_biasprm"), torch.zeros_like(gain))


def test_actuators_that_stay_keep_their_controls(vendor: Path) -> None:
    hips = ActuatorConfig(joints=("left_hip_joint",), type="motor", gear=5.0, ctrl_range=(-2.0, 2.0))
    model = load(vendor, actuators={"hips": hips}, keyframe="stand")
    assert names_of(model, "actuator") == ["left_knee_joint", "left_knee_joint_position", "right", "left_hip_joint"]
    assert model.key("home").ctrl.tolist() == [0.2, 0.3, 0.4, 0.0]
    assert model.actuator("left_hip_joint").gear[0] == 5.0
    assert model.actuator("left_hip_joint").ctrlrange.tolist() == [-2.0, 2.0]


def test_position_actuators_hold_a_pose_on_both_sides_of_the_gear(vendor: Path) -> None:
    config = env_of(
        RobotConfig(
            file=str(vendor),
            actuators={"legs": ActuatorConfig(joints=(".*_joint",), kp=500.0, kv=20.0)},
            keyframes={"crouch": KeyframeConfig(joints={".*_hip_joint": 0.3, "left_knee_joint": -0.6}, height=1.0)},
            keyframe="crouch",
            options=OptionConfig(disable=("gravity",)),
        )
    )
    env = make_env(config, num_envs=1)
    env.engine.step(env.engine.layout.default_ctrl[None], 200)
    assert env.qpos((".*_joint",))[0].tolist() == pytest.approx([0.3, -0.6, 0.3], abs=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_default_pose_is_the_keyframe_that_was_chosen(engine: str, vendor: Path) -> None:
    for keyframe, height in (("", 0.9), ("home", 0.9), ("stand", 0.55)):
        robot = RobotConfig(file=str(vendor), keyframe=keyframe, options=OptionConfig(integrator="implicitfast"))
        env = make_env(env_of(robot), engine=engine, num_envs=2)
        assert env.qpos("root")[:, 2].tolist() == pytest.approx([height] * 2)
    model = load(vendor, keyframes={"low": KeyframeConfig(height=0.3, quat=(0.0, 0.0, 0.0, 2.0))}, keyframe="low")
    assert model.key("home").qpos[2:7].tolist() == [0.3, 0.0, 0.0, 0.0, 1.0]
    assert model.key("home").qpos[7:].tolist() == model.qpos0[7:].tolist()


def test_options_and_the_physics_step(vendor: Path) -> None:
    options = OptionConfig(
        integrator="implicitfast",
        solver="CG",
        cone="elliptic",
        iterations=7,
        impratio=3.0,
        gravity=(0.0, 0.0, -1.6),
        enable=("contact", "energy"),
        disable=("eulerdamp",),
    )
    option = load(vendor, timestep=0.003, options=options).opt
    assert (option.timestep, option.iterations, option.impratio) == (0.003, 7, 3.0)
    assert option.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    assert option.solver == mujoco.mjtSolver.mjSOL_CG
    assert option.cone == mujoco.mjtCone.mjCONE_ELLIPTIC
    assert option.gravity.tolist() == [0.0, 0.0, -1.6]
    assert option.disableflags == mujoco.mjtDisableBit.mjDSBL_EULERDAMP
    assert option.enableflags == mujoco.mjtEnableBit.mjENBL_ENERGY


def count_contacts(model: Any, *, crossed: bool) -> set[tuple[int, int]]:
    """Return the pairs of geoms in contact where the right leg is in the place of the left one."""
    data = mujoco.MjData(model)
    data.qpos[2] = 0.5
    if crossed:
        model.body_pos[model.body("right").id, 1] = 0.1
    mujoco.mj_forward(model, data)
    return {(int(pair[0]), int(pair[1])) for pair in data.contact.geom}


def test_self_collision_is_turned_off_and_the_ground_stays(vendor: Path) -> None:
    on = OptionConfig(enable=("contact",))
    with_self = load(vendor, options=on)
    left, right, foot, floor = (with_self.geom(name).id for name in ("left_leg", "right_leg", "left_foot", "floor"))
    assert {(left, right), (floor, foot)} <= count_contacts(with_self, crossed=True)
    assert count_contacts(load(vendor, options=on, self_collision=False), crossed=True) == {(floor, foot)}


def test_geoms_are_changed_by_name_and_by_body(vendor: Path) -> None:
    geoms = {
        "all": GeomConfig(bodies=(".*",), group=1, friction=(0.4, 0.01, 0.002)),
        "legs": GeomConfig(geoms=(".*_leg",), collision=False),
        "feet": GeomConfig(geoms=("left_foot",), condim=6, priority=2, rgba=(1.0, 0.0, 0.0, 1.0)),
    }
    model = load(vendor, geoms=geoms)
    assert model.geom("torso").group[0] == 1
    assert model.geom("right_leg").contype[0] == model.geom("right_leg").conaffinity[0] == 0
    assert model.geom("left_foot").contype[0] == 1
    assert (model.geom("left_foot").condim[0], model.geom("left_foot").priority[0]) == (6, 2)
    assert model.geom("left_leg").friction.tolist() == [0.4, 0.01, 0.002]


def test_cameras_and_lights_are_added(vendor: Path) -> None:
    model = load(
        vendor,
        cameras={
            "side": MountedCameraConfig(
                body="torso", pos=(0.0, -2.0, 0.5), xyaxes=(1, 0, 0, 0, 0.2, 1), mode="trackcom"
            ),
            "watch": MountedCameraConfig(pos=(3.0, 0.0, 1.0), mode="targetbody", target="torso", fovy=60.0),
        },
        lights={"sun": LightConfig(dir=(0.1, 0.0, -1.0))},
    )
    assert {"side", "watch", "track"} == set(names_of(model, "camera"))
    assert model.cam_fovy[model.camera("watch").id] == 60.0
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    x_axis, y_axis, _ = data.cam("side").xmat.reshape(3, 3).T
    assert x_axis == pytest.approx([1.0, 0.0, 0.0])
    assert y_axis == pytest.approx([0.0, 0.2 / 1.04**0.5, 1.0 / 1.04**0.5])
    assert names_of(model, "light") == ["sun"]


def test_parts_get_the_names_that_a_task_uses(vendor: Path) -> None:
    names = NamesConfig(
        joints={"(.*)_joint": r"\1", "root": "base"}, bodies={"torso": "trunk"}, actuators={"right": "right_hip"}
    )
    sensors = {"base_height": SensorConfig(type="framepos", object="trunk")}
    model = load(vendor, names=names, sensors=sensors, keyframes={"home": KeyframeConfig(joints={"left_hip": 0.5})})
    assert names_of(model, "joint") == ["base", "left_hip", "left_knee", "right_hip"]
    assert names_of(model, "actuator") == ["left_hip", "left_knee", "left_knee_position", "right_hip"]
    assert model.sensor("torso_pos").objid[0] == model.body("trunk").id  # references follow
    assert model.key("home").qpos[7] == 0.5


def test_the_ground_is_added_to_a_completed_robot(vendor: Path) -> None:
    vendor.write_text(VENDOR.replace('<geom name="floor" type="plane" size="5 5 0.1"/>', ""))
    model = load_model(
        env_of(RobotConfig(file=str(vendor), actuators={"legs": LEGS}), terrain=TerrainConfig(kind="flat"))
    )
    assert model.geom("ground").type[0] == mujoco.mjtGeom.mjGEOM_PLANE
    assert model.nu == 3


def test_it_is_recorded_and_read_again(vendor: Path) -> None:
    robot = RobotConfig(
        file=str(vendor),
        timestep=0.004,
        names=NamesConfig(joints={"(.*)_joint": r"\1"}),
        options=OptionConfig(gravity=(0.0, 0.0, -1.0), disable=("contact",)),
        sensors={"s": SensorConfig(type="contact", object="torso", data=("found", "force"))},
        actuators={"legs": LEGS},
        keyframes={"k": KeyframeConfig(joints={".*": 0.0}, height=1.0)},
        cameras={"c": MountedCameraConfig(xyaxes=(1.0, 0.0, 0.0, 0.0, 0.0, 1.0))},
        geoms={"g": GeomConfig(geoms=(".*",), friction=(1.0, 0.1, 0.1))},
    )
    assert from_plain(RobotConfig, to_plain(robot)) == robot


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "sensor type": (
        {"sensors": {"x": SensorConfig(type="gyroo", object="torso")}},
        "--env.robot.sensors.x.type gyroo: is not a sensor type; did you mean gyro?; available: touch, ",
    ),
    "no sensor type": ({"sensors": {"x": SensorConfig()}}, "--env.robot.sensors.x.type '': is not a sensor type"),
    "sensor object": (
        {"sensors": {"x": SensorConfig(type="gyro", object="torsoo")}},
        "--env.robot.sensors.x.object torsoo: no site or body or geom has this name; did you mean torso?",
    ),
    "no object": (
        {"sensors": {"x": SensorConfig(type="jointpos")}},
        "--env.robot.sensors.x.object '': no joint has this name; available: root, left_hip_joint",
    ),
    "object of the wrong kind": (
        {"sensors": {"x": SensorConfig(type="framepos", object="torso", object_type="joint")}},
        "--env.robot.sensors.x.object_type joint: this type of sensor takes none; available: site",
    ),
    "reference": (
        {"sensors": {"x": SensorConfig(type="framepos", object="torso", reference="wrld")}},
        "--env.robot.sensors.x.reference wrld: no site or body or geom or camera has this name; did you mean world?",
    ),
    "reference of a sensor without one": (
        {"sensors": {"x": SensorConfig(type="gyro", object="torso", reference="world")}},
        "--env.robot.sensors.x.reference world: type gyro takes no reference",
    ),
    "no reference": (
        {"sensors": {"x": SensorConfig(type="distance", object="torso")}},
        "--env.robot.sensors.x.reference: a sensor of type distance needs one",
    ),
    "object of a clock": (
        {"sensors": {"x": SensorConfig(type="clock", object="torso")}},
        "--env.robot.sensors.x.object torso: a sensor of type clock takes no object",
    ),
    "a plane as a site": (
        {"sensors": {"x": SensorConfig(type="touch", object="floor")}},
        "--env.robot.sensors.x.object floor: the geom is a plane, which no site can be; add one with --env.robot.sites",
    ),
    "contact data": (
        {"sensors": {"x": SensorConfig(type="contact", object="torso", data=("forces",))}},
        "--env.robot.sensors.x.data forces: no contact data has this name; did you mean force?",
    ),
    "contact data in another order": (
        {"sensors": {"x": SensorConfig(type="contact", object="torso", data=("pos", "found"))}},
        "--env.robot.sensors.x.data pos found: give MuJoCo's order, found pos",
    ),
    "contact data of a frame": (
        {"sensors": {"x": SensorConfig(type="framepos", object="torso", num=2)}},
        "--env.robot.sensors.x.num 2: only type contact uses it; leave it out",
    ),
    "keyframe": (
        {"keyframe": "stnd"},
        "--env.robot.keyframe stnd: no keyframe has this name; did you mean stand?; available: stand, home",
    ),
    "joint of a keyframe": (
        {"keyframes": {"a": KeyframeConfig(joints={"left_hip": 1.0})}},
        "--env.robot.keyframes.a.joints left_hip: matches no hinge or slide; did you mean left_hip_joint?",
    ),
    "a joint of a keyframe twice": (
        {"keyframes": {"a": KeyframeConfig(joints={".*_hip_joint": 0.3, "left_.*": -0.1})}},
        "--env.robot.keyframes.a.joints: left_hip_joint is matched by '.*_hip_joint' (0.3) and by 'left_.*' (-0.1); "
        "give each hinge or slide to one expression",
    ),
    "a control of a keyframe twice": (
        {"keyframes": {"a": KeyframeConfig(ctrl={"left_.*": 0.5, ".*": 0.2})}},
        "--env.robot.keyframes.a.ctrl: left_hip_joint is matched by 'left_.*' (0.5) and by '.*' (0.2); give each actu",
    ),
    "joint of actuators": (
        {"actuators": {"a": ActuatorConfig(joints=("leg_.*",), kp=1.0)}},
        "--env.robot.actuators.a.joints leg_.*: matches no hinge or slide; available: left_hip_joint, ",
    ),
    "a string for a tuple": (
        {"actuators": {"a": ActuatorConfig(joints=".*", kp=1.0)}},  # pyright: ignore[reportArgumentType]
        "--env.robot.actuators.a.joints: is the string '.*'; give a tuple, such as (\".*\",)",
    ),
    "an expression that is none": (
        {"actuators": {"a": ActuatorConfig(joints=("(",), kp=1.0)}},
        "--env.robot.actuators.a.joints (: is not a valid regular expression",
    ),
    "a pose that is not a number": (
        {"keyframes": {"home": KeyframeConfig(joints={"left_hip_joint": float("nan")})}},
        "--env.robot.keyframes.home.joints left_hip_joint nan: must be finite",
    ),
    "a gain of a motor": (
        {"actuators": {"a": ActuatorConfig(type="motor", kv=1.0)}},
        "--env.robot.actuators.a.kv 1: type motor ignores it; leave it out",
    ),
    "half a curve": (
        {"actuators": {"a": ActuatorConfig(type="motor", stall_torque=5.0)}},
        "--env.robot.actuators.a.stall-torque: needs no-load-speed too",
    ),
    "no gain": ({"actuators": {"a": ActuatorConfig()}}, "--env.robot.actuators.a.kp 0: must be more than 0"),
    "range": (
        {"actuators": {"a": ActuatorConfig(kp=1.0, force_range=(1.0, -1.0))}},
        "--env.robot.actuators.a.force-range 1 -1: the first must be less than the second",
    ),
    "a joint twice": (
        {"actuators": {"a": ActuatorConfig(kp=1.0), "b": ActuatorConfig(joints=("left_hip.*",), kp=1.0)}},
        "--env.robot.actuators.b.joints: left_hip_joint is in actuators.a too; give each joint to one group",
    ),
    "option": (
        {"options": OptionConfig(integrator="rk4")},  # pyright: ignore[reportArgumentType]
        "--env.robot.options.integrator rk4: choose from Euler, RK4, implicit, implicitfast",
    ),
    "flag of an option": (
        {"options": OptionConfig(disable=("contacts",))},
        "--env.robot.options.disable contacts: is not a MuJoCo flag; did you mean contact?",
    ),
    "geom": (
        {"geoms": {"a": GeomConfig(geoms=("feet",), group=1)}},
        "--env.robot.geoms.a.geoms feet: matches no geom; available: floor, torso, left_leg",
    ),
    "no geom": ({"geoms": {"a": GeomConfig(group=1)}}, "--env.robot.geoms.a: chooses no geoms"),
    "body of a site": (
        {"sites": {"a": SiteConfig(body="trso")}},
        "--env.robot.sites.a.body trso: no body has this name; did you mean torso?",
    ),
    "camera": (
        {"cameras": {"track": MountedCameraConfig()}},
        "--env.robot.cameras.track: the robot has a camera of this name; give another name",
    ),
    "field of view": (
        {"cameras": {"a": MountedCameraConfig(fovy=200.0)}},
        "--env.robot.cameras.a.fovy 200: must be more than 0 and less than 180",
    ),
    "no field of view": (
        {"cameras": {"a": MountedCameraConfig(fovy=float("nan"))}},
        "--env.robot.cameras.a.fovy nan: must be more than 0 and less than 180 and finite",
    ),
    "place of a camera": (
        {"cameras": {"a": MountedCameraConfig(pos=(0.0, float("nan"), 1.0))}},
        "--env.robot.cameras.a.pos 0 nan 1: each must be finite",
    ),
    "target of a camera": (
        {"cameras": {"a": MountedCameraConfig(mode="targetbody")}},
        "--env.robot.cameras.a.target : no body has this name; available: world, torso",
    ),
    "names": (
        {"names": NamesConfig(joints={"left_.*_joint": "left"})},
        "--env.robot.names.joints: would give left to more than one joint",
    ),
    "group of a name": (
        {"names": NamesConfig(joints={"left_hip_joint": r"\2"})},
        "--env.robot.names.joints left_hip_joint \\2: invalid group reference 2",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_name_is_one_line(mistake: str, vendor: Path) -> None:
    fields, message = MISTAKES[mistake]
    with pytest.raises(RequestError) as caught:
        load(vendor, **fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_function_that_fails_or_returns_something_else_is_one_line() -> None:
    def fails() -> Any:
        raise KeyError("torso")

    def returns_text() -> Any:
        return "robot.xml"

    with pytest.raises(RequestError, match=r"--env.robot .*fails: KeyError: 'torso'"):
        load_model(env_of(fails))
    with pytest.raises(RequestError, match=r"returns_text: the function returned str; it must return an mujoco.MjSpec"):
        load_model(env_of(returns_text))


def test_a_function_may_return_the_same_robot_again() -> None:
    spec = mujoco.MjSpec.from_string(VENDOR)
    config = env_of(
        RobotConfig(spec=lambda: spec, sites={"head": SiteConfig(body="torso")}), terrain=TerrainConfig(kind="flat")
    )
    assert list_differences(load_model(config), load_model(config)) == []
    assert [geom.name for geom in spec.geoms if geom.name == "ground"] == []


def test_a_robot_without_a_free_joint_has_no_height(tmp_path: Path) -> None:
    path = tmp_path / "arm.xml"
    path.write_text('<mujoco><worldbody><body><joint name="a"/><geom size="0.1"/></body></worldbody></mujoco>')
    with pytest.raises(RequestError, match=r"--env.robot.keyframes.home.height: the robot has no free joint; "):
        load(path, keyframes={"home": KeyframeConfig(height=1.0)})


SCENE = """<mujoco>
  <worldbody>
    <body name="ball" pos="1 0 .1"><freejoint name="ball"/><geom size=".1" mass=".1"/></body>
    <body name="trunk" pos="0 0 .9"><freejoint name="base"/><geom size=".1" mass="3"/>
      <body><joint name="knee" axis="0 1 0"/><geom size=".03" mass=".3" pos="0 0 -.3"/>
        <body><joint name="foot" axis="0 1 0"/><geom size=".03" mass=".1" pos="0 0 -.5"/></body></body></body>
  </worldbody>
  <actuator>
    <pid name="servo" joint="knee" kp="20" kv="1" gear="2" slewmax="9" input="pos vel ff"/>
    <intvelocity name="turn" joint="foot" kp="5" actrange="-3 3"/>
    <motor name="push" joint="foot"/>
  </actuator>
  <keyframe><key name="stand" qpos="1 0 .1 1 0 0 0 0 0 .9 1 0 0 0 0.2 0.1" ctrl="1 2 3 4 5" act="6 7"/></keyframe>
</mujoco>"""


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    path = tmp_path / "scene.xml"
    path.write_text(SCENE)
    return path


@pytest.mark.parametrize(
    ("changes", "keyframe", "raised"),
    [
        ({}, {}, "base"),  # which has actuators
        ({"<freejoint name=\"base\"/>": "<freejoint/>"}, {}, ""),
        ({}, {"free_joint": "ball"}, "ball"),
        ({"</worldbody>": SCENE[SCENE.index("<body name=\"trunk") : SCENE.index("</worldbody>")].replace(
            "name=\"", "name=\"other_") + "</worldbody>", "</actuator>": "<motor joint=\"other_foot\"/></actuator>",
            "0.2 0.1\"": "0.2 0.1 0 1 0 1 0 0 0 0 0\""},
            {"free_joint": "other_base"}, "other_base"),
    ],
)  # fmt: skip
def test_a_keyframe_sets_the_height_of_one_free_joint(
    changes: dict[str, str], keyframe: dict[str, Any], raised: str, tmp_path: Path
) -> None:
    text = SCENE
    for before, after in changes.items():
        text = text.replace(before, after)
    path = tmp_path / "scene.xml"
    path.write_text(text)
    model = load(path, keyframes={"home": KeyframeConfig(height=0.6, **keyframe)})
    free = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
    names = [model.joint(index).name for index in free]
    columns = model.jnt_qposadr[free] + 2
    before = dict(zip(names, model.qpos0[columns], strict=True))
    assert dict(zip(names, model.key("home").qpos[columns], strict=True)) == before | {raised: 0.6}
    if raised == "other_base":
        with pytest.raises(RequestError, match=r"home\.free-joint: name the free joint of height and quat; available:"):
            load(path, keyframes={"home": KeyframeConfig(height=0.6)})
        with pytest.raises(RequestError, match=r"home\.free-joint trunk: no free joint has this name"):
            load(path, keyframes={"home": KeyframeConfig(height=0.6, free_joint="trunk")})


def test_a_keyframe_holds_its_pose_with_controls_and_activations(scene: Path) -> None:
    pose = {"knee": 0.4, "foot": -0.3}
    model = load(scene, keyframes={"home": KeyframeConfig(joints=pose, ctrl={"servo:ff": 0.5, "push": 2.0})})
    assert model.key("home").ctrl.tolist() == [0.8, 0.0, 0.5, 0.0, 2.0]  # both sides of the gear
    assert model.key("home").act.tolist() == [0.8, -0.3]


def test_a_keyframe_holds_its_pose_with_actuators_in_the_frame_of_the_parent_too(tmp_path: Path) -> None:
    (path := tmp_path / "scene.xml").write_text(SCENE.replace('name="servo" joint=', 'name="servo" jointinparent='))
    model = load(path, keyframes={"home": KeyframeConfig(joints={"knee": 0.4})})
    assert model.key("home").ctrl[0] == pytest.approx(0.8)


def test_actuators_that_stay_keep_all_their_controls_and_activations(scene: Path) -> None:
    model = load(scene, actuators={"foot": ActuatorConfig(joints=("foot",), kp=3.0)}, keyframe="stand")
    assert names_of(model, "actuator")[0] == "servo"
    assert model.key("home").ctrl.tolist() == [1.0, 2.0, 3.0, 0.1]
    assert model.key("home").act.tolist() == [6.0]


def test_actions_find_the_controls_of_an_actuator_by_its_block(scene: Path) -> None:
    env = make_env(env_of(str(scene), actions={"all": ActionTerm(actuators=("push", "servo:(vel|pos)"))}), num_envs=1)
    assert [(row["actuator"], row.get("input")) for row in env.action_table] == [
        ("servo", "pos"), ("servo", "vel"), ("push", None),
    ]  # fmt: skip
    assert env.engine.layout.actuators == {"servo": 0, "turn": 1, "push": 2}
    ctrl = env._actions.apply(torch.tensor([[0.1, 0.2, 0.3]]), env)
    assert ctrl[0].tolist() == pytest.approx([0.1, 0.2, 0.0, 0.0, 0.3])
    with pytest.raises(RequestError, match="this task needs what the robot lacks: actuator servo:force"):
        make_env(env_of(str(scene), actions={"all": ActionTerm(actuators=("servo:force",))}))


def test_locked_joints_leave_the_robot_in_its_default_pose_with_fewer_joints(vendor: Path) -> None:
    sensors = {"knee": SensorConfig(type="jointpos", object="left_knee_joint")}
    whole = load(vendor, keyframe="stand", sensors=sensors)
    legs = load(vendor, keyframe="stand", sensors=sensors, locked_joints=("left_.*",))
    assert names_of(legs, "joint") == ["root", "right_hip_joint"]
    assert names_of(legs, "actuator") == ["right"]
    assert [legs.sensor(index).name for index in range(legs.nsensor)] == ["right_force", "torso_pos"]
    assert legs.key("home").qpos == pytest.approx([0, 0, 0.55, 1, 0, 0, 0, 0.1])
    assert legs.key("home").ctrl == pytest.approx([0.4])
    ends = []
    for model in (whole, legs):
        data = mujoco.MjData(model)
        mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
        mujoco.mj_forward(model, data)
        ends.append(np.concatenate([data.geom(name).xpos for name in ("left_leg", "left_foot", "right_leg")]))
    assert ends[1] == pytest.approx(ends[0], abs=1e-9)


SHOULDER = """
<mujoco>
  <worldbody>
    <body name="base" euler="10 20 30">
      <body name="arm" pos="0.1 0.2 0.3" euler="40 0 20">
        <joint name="first" axis="1 0 0" pos="0 0.02 0"/>
        <joint name="second" axis="0 1 0" pos="0.01 0 0"/>
        <joint name="third" type="slide" axis="0 1 1"/>
        <joint name="fourth" axis="0 0 1" pos="0 0 0.03"/>
        <geom type="capsule" fromto="0 0 0 0.3 0 0.1" size="0.02"/>
        <body name="hand" pos="0.3 0 0.1">
          <joint name="fifth" axis="0 1 0"/>
          <geom type="box" size="0.05 0.02 0.01"/>
        </body>
      </body>
    </body>
  </worldbody>
  <keyframe><key name="home" qpos="0 1 0.1 0 0"/></keyframe>
</mujoco>
"""


@pytest.mark.parametrize("nameless", [False, True])
@pytest.mark.parametrize("locked", [("second", "third"), ("first", "fourth"), ("second",)], ids="-".join)
def test_joints_beside_locked_ones_of_the_same_body_turn_as_before(
    tmp_path: Path, locked: tuple[str, ...], *, nameless: bool
) -> None:
    file = tmp_path / "arm.xml"
    names = ["first", "second", "third", "fourth", "fifth"]
    kept = [name for name in names if name not in locked]
    file.write_text(re.sub(f'name="({"|".join(kept)})"', "", SHOULDER) if nameless else SHOULDER)
    full, fewer = load(file), load(file, locked_joints=locked)
    assert fewer.nq == full.nq - len(locked)
    pose = {"first": 0.7, "second": -0.4, "third": 0.2, "fourth": 0.3, "fifth": -0.5}
    pose |= {name: full.key("home").qpos[full.joint(name).qposadr[0]] for name in locked}
    states = []
    for model, order in ((full, names), (fewer, kept)):
        data = mujoco.MjData(model)
        data.qpos[:] = [pose[name] for name in order]
        mujoco.mj_kinematics(model, data)
        states.append(np.hstack([data.geom_xpos, data.geom_xmat]))
    assert states[1] == pytest.approx(states[0], abs=1e-9)


CLOSED = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <body name="crank"><joint name="crank" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 0.3" size="0.01"/>
      <body name="rod" pos="0 0 0.3"><joint name="rod" axis="0 1 0"/><geom size="0.01" pos="0.3 0 0"/></body>
    </body>
    <body name="rocker" pos="0.3 0 0"><joint name="rocker" axis="0 1 0"/><geom size="0.01" pos="0 0 0.3"/></body>
  </worldbody>
  <equality>EQUALITY</equality>
  <keyframe><key name="home" qpos="0.4 -0.4 0.4"/></keyframe>
</mujoco>
"""


@pytest.mark.parametrize(
    "equality",
    [
        '<connect body1="rod" body2="rocker" anchor="0.3 0 0"/>',
        '<connect body1="rod" anchor="0.3 0 0"/>',
        '<weld body1="rod" body2="rocker" torquescale="2"/>',
    ],
    ids=["connect", "to the world", "weld"],
)
def test_a_closed_chain_stays_closed_where_it_was_if_joints_of_it_are_locked(equality: str, tmp_path: Path) -> None:
    file = tmp_path / "closed.xml"
    file.write_text(CLOSED.replace("EQUALITY", equality))
    gaps = []
    for model, qpos in ((load(file), [0.4, 0.2, -0.3]), (load(file, locked_joints=("crank",)), [0.2, -0.3])):
        data = mujoco.MjData(model)
        data.qpos[:] = qpos
        mujoco.mj_forward(model, data)
        gaps.append(data.efc_pos[: data.ne])
    assert gaps[1] == pytest.approx(gaps[0], abs=1e-9)


def test_keyframes_without_names_keep_their_poses(vendor: Path) -> None:
    file = vendor.with_name("nameless.xml")
    file.write_text(re.sub(r'<key name="[^"]*"', "<key", vendor.read_text()))
    before = load(file)
    assert before.nkey > 1
    motors = {".*": ActuatorConfig(joints=(".*",), kp=30.0)}
    assert load(file, actuators=motors).key_qpos == pytest.approx(before.key_qpos)
    locked = load(file, locked_joints=("left_knee_joint",))
    columns = np.delete(np.arange(before.nq), before.joint("left_knee_joint").qposadr[0])
    assert locked.key_qpos == pytest.approx(before.key_qpos[:, columns])


@pytest.mark.parametrize("turn", ['quat="1 1 0 0"', 'euler="90 0 0"', 'zaxis="0 1 0"'])
def test_the_ground_lies_level_whatever_the_robots_defaults_are(tmp_path: Path, turn: str) -> None:
    file = tmp_path / "raised.xml"
    default = f'<default><geom group="3" pos="0 0 0.5" {turn}/></default>'
    body = '<body><joint type="slide"/><geom size="1"/></body>'
    file.write_text(f"<mujoco>{default}<worldbody>{body}</worldbody></mujoco>")
    model = load_model(env_of(RobotConfig(file=str(file)), terrain=TerrainConfig(kind="flat")))
    ground = model.geom("ground")
    assert ground.group[0] == 0
    assert ground.pos == pytest.approx([0, 0, 0])
    assert ground.quat == pytest.approx([1, 0, 0, 0])


def test_locked_joints_that_are_not_there_are_named(vendor: Path) -> None:
    with pytest.raises(RequestError, match=r"--env\.robot\.locked-joints arm: matches no hinge or slide"):
        load(vendor, locked_joints=("arm",))


@pytest.mark.parametrize("kind", ["position", "velocity", "motor"])
def test_an_actuator_of_a_config_has_no_defaults_of_the_file(tmp_path: Path, kind: str) -> None:
    """Gymnasium's half_cheetah.xml limits the controls of all its motors by their default."""
    body = '<worldbody><body><joint name="j" axis="0 1 0" range="-2 2"/><geom size="0.1"/></body></worldbody>'
    limits = 'ctrllimited="true" ctrlrange="-1 1" forcelimited="true" forcerange="-5 5"'
    models = []
    for name, default in (("plain", ""), ("limited", f'<default><motor {limits} group="2"/></default>')):
        file = tmp_path / f"{name}.xml"
        file.write_text(f'<mujoco><compiler angle="radian"/>{default}{body}</mujoco>')
        config = ActuatorConfig(type=kind, kp=3.0 * (kind == "position"), kv=0.5 * (kind != "motor"))  # pyright: ignore
        models.append(load(file, actuators={"all": config}))
    assert list_differences(*models) == []


def test_the_range_of_an_attached_joint_has_its_own_unit(tmp_path: Path) -> None:
    part = '<body name="arm"><joint name="j" axis="0 1 0" range="-90 90"/><geom size="0.1"/></body>'
    (tmp_path / "arm.xml").write_text(f'<mujoco model="arm"><worldbody>{part}</worldbody></mujoco>')
    file = tmp_path / "robot.xml"
    file.write_text(
        '<mujoco><compiler angle="radian"/><asset><model name="arm" file="arm.xml"/></asset>'
        '<worldbody><body name="base"><attach model="arm" body="arm" prefix="a_"/></body></worldbody></mujoco>'
    )
    motor = ActuatorConfig(kp=3.0, stall_torque=5.0, no_load_speed=9.0)
    model = load(file, actuators={"all": motor})
    assert model.actuator_ctrlrange == pytest.approx(model.jnt_range)


def test_the_field_of_view_of_a_camera_is_that_of_its_config(tmp_path: Path) -> None:
    file = tmp_path / "lens.xml"
    lens = '<default><camera resolution="64 64" focal="0.01 0.01" sensorsize="0.01 0.01"/></default>'
    body = '<worldbody><body name="b"><joint name="j"/><geom size="0.1"/></body></worldbody>'
    file.write_text(f"<mujoco>{lens}{body}</mujoco>")
    model = load(file, cameras={"eye": MountedCameraConfig(body="b", fovy=60.0)})
    assert model.camera("eye").fovy[0] == pytest.approx(60.0)


TIED = """
<mujoco>
  <worldbody>
    <body><joint name="a" axis="0 1 0"/><geom name="ball" size="0.1"/><site name="near"/>
      <body pos="0 0 1"><joint name="b" axis="0 1 0"/><geom size="0.1"/><site name="far"/>
        <body pos="0 0 1"><joint name="c" axis="0 1 0"/><geom size="0.1"/></body>
      </body>
    </body>
  </worldbody>
  <tendon>PARTS</tendon>
  <equality><joint name="mimic" joint1="a" joint2="b"/></equality>
  <actuator><motor name="motor" joint="a"/></actuator>
  <sensor><jointpos name="angle" joint="a"/></sensor>
  <custom><tuple name="marked">
    <element objtype="joint" objname="a"/><element objtype="site" objname="near"/>
    <element objtype="geom" objname="ball"/><element objtype="actuator" objname="motor"/>
    <element objtype="sensor" objname="angle"/>
  </tuple></custom>
</mujoco>
"""
FIXED = '<fixed name="cord"><joint joint="a" coef="1"/><joint joint="b" coef="-1"/></fixed>'
SPATIAL = '<spatial><site site="near"/><geom geom="ball" sidesite="near"/><site site="far"/></spatial>'


@pytest.mark.parametrize(
    ("parts", "config", "says"),
    [
        (FIXED, {"locked_joints": ("[ab]",)}, "locked-joints: joint a is part of tendon cord; leave the joint out"),
        ("", {"locked_joints": ("b",)}, "locked-joints: joint b is tied to joint a by equality mimic; lock both or"),
        (FIXED, {"names": NamesConfig(joints={"b": "d"})}, "names.joints: joint b would be d, and tendon cord of the"),
        (SPATIAL, {"names": NamesConfig(sites={"far": "d"})}, "names.sites: site far would be d, and tendon 0 of the"),
        (SPATIAL, {"names": NamesConfig(geoms={"ball": "d"})}, "names.geoms: geom ball would be d, and tendon 0 of"),
    ],
    ids=["locked in a tendon", "locked in an equality", "joint", "site", "geom"],
)
def test_what_names_a_joint_that_cannot_be_locked_or_renamed_is_told(
    tmp_path: Path, parts: str, config: dict[str, Any], says: str
) -> None:
    file = tmp_path / "tied.xml"
    file.write_text(TIED.replace("PARTS", parts))
    with pytest.raises(RequestError, match=re.escape(f"--env.robot.{says}")):
        load(file, **config)


def test_what_names_parts_follows_them_and_goes_with_joints_that_are_all_locked(tmp_path: Path) -> None:
    file = tmp_path / "tied.xml"
    file.write_text(TIED.replace("PARTS", SPATIAL))
    new = {".*": r"new_\g<0>"}
    kept = {"(near|far|ball)": r"\1"}  # what the tendon names
    names = NamesConfig(joints=new, actuators=new, sensors=new, sites=kept, geoms=kept)
    before, after = load(file), load(file, names=names)
    assert after.tuple_objid.tolist() == before.tuple_objid.tolist()
    assert names_of(after, "joint") == ["new_a", "new_b", "new_c"]
    assert load(file, locked_joints=("c",)).neq == 1
    both = load(file, locked_joints=("[ab]",))
    assert (names_of(both, "joint"), both.neq, both.nactuator) == (["c"], 0, 0)
