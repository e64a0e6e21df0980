"""What a mirror makes of a robot, against MuJoCo's own kinematics."""

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.config import MirrorConfig
from mjtrain.env.catalog import load_task
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.mirror import RobotMirror, find_mirror
from mjtrain.sim.robots.model import load_model
from mjtrain.sim.robots.read_layout import make_layout
from mjtrain.sim.robots.start import make_start

NAMES = {"left_(.*)": r"right_\1"}
# The frames of the right side are turned, so that axes and signs differ from those of the left.
ROBOT = """
<mujoco>
  <option timestep="0.002" integrator="implicitfast"/>
  <default><joint damping="0.1" armature="0.01"/><geom contype="0" conaffinity="0" density="800"/></default>
  <worldbody>
    <body name="trunk" pos="0 0 1" quat="0.9689124 0 0.247404 0">
      <freejoint name="root"/>
      <geom type="box" size="0.2 0.1 0.05"/>
      <site name="imu" pos="0.02 0 0.05"/>
      <body name="neck" pos="0.2 0 0.05">
        <joint name="neck" axis="0 0 1" range="-1 1"/>
        <geom type="capsule" fromto="0 0 0 0.1 0 0.1" size="0.03"/>
      </body>
      <body name="left_leg" pos="0 0.1 0">
        <joint name="left_hip" axis="1 0.5 0" range="-0.5 1"/>
        <geom type="capsule" fromto="0 0 0 0.05 0.1 -0.3" size="0.03"/>
        <site name="left_sole" pos="0.05 0.1 -0.3" euler="20 0 30"/>
        <body name="left_foot" pos="0.05 0.1 -0.3">
          <joint name="left_slide" type="slide" axis="0 1 1"/>
          <geom type="sphere" size="0.04"/>
        </body>
      </body>
      <body name="right_leg" pos="0 -0.1 0" euler="0 0 180">
        <joint name="right_hip" axis="-1 0.5 0" range="-1 0.5"/>
        <geom type="capsule" fromto="0 0 0 -0.05 0.1 -0.3" size="0.03"/>
        <site name="right_sole" pos="-0.05 0.1 -0.3" euler="20 0 -30"/>
        <body name="right_foot" pos="-0.05 0.1 -0.3">
          <joint name="right_slide" type="slide" axis="0 1 1"/>
          <geom type="sphere" size="0.04"/>
        </body>
      </body>
      <body name="left_arm" pos="0.1 0.1 0.05">
        <joint name="left_shoulder" type="ball"/>
        <geom type="capsule" fromto="0 0 0 0 0.2 0" size="0.02"/>
      </body>
      <body name="right_arm" pos="0.1 -0.1 0.05">
        <joint name="right_shoulder" type="ball"/>
        <geom type="capsule" fromto="0 0 0 0 -0.2 0" size="0.02"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="left_hip" joint="left_hip" kp="20" ctrlrange="-0.5 1"/>
    <position name="right_hip" joint="right_hip" kp="20" ctrlrange="-1 0.5"/>
    <motor name="neck" joint="neck" gear="2"/>
    <motor name="left_slide" joint="left_slide"/>
    <motor name="right_slide" joint="right_slide" gear="-1"/>
  </actuator>
  <sensor>
    <velocimeter name="velocity" site="imu"/>
    <gyro name="turning" site="imu"/>
    <accelerometer name="acceleration" site="imu"/>
    <framezaxis name="up" objtype="xbody" objname="world" reftype="site" refname="imu"/>
    <framequat name="orientation" objtype="site" objname="imu"/>
    <framequat name="left_orientation" objtype="site" objname="left_sole" reftype="site" refname="imu"/>
    <framequat name="right_orientation" objtype="site" objname="right_sole" reftype="site" refname="imu"/>
    <framepos name="left_place" objtype="body" objname="left_foot" reftype="site" refname="imu"/>
    <framepos name="right_place" objtype="body" objname="right_foot" reftype="site" refname="imu"/>
    <gyro name="left_turning" site="left_sole"/>
    <gyro name="right_turning" site="right_sole"/>
    <force name="left_force" site="left_sole"/>
    <force name="right_force" site="right_sole"/>
    <torque name="left_torque" site="left_sole"/>
    <torque name="right_torque" site="right_sole"/>
    <framelinvel name="left_speed" objtype="site" objname="left_sole"/>
    <framelinvel name="right_speed" objtype="site" objname="right_sole"/>
    <frameangvel name="left_spin" objtype="body" objname="left_arm"/>
    <frameangvel name="right_spin" objtype="body" objname="right_arm"/>
    <jointpos name="left_angle" joint="left_hip"/>
    <jointpos name="right_angle" joint="right_hip"/>
    <jointvel name="neck_speed" joint="neck"/>
    <actuatorfrc name="left_push" actuator="left_slide"/>
    <actuatorfrc name="right_push" actuator="right_slide"/>
    <subtreecom name="centre" body="trunk"/>
    <subtreeangmom name="momentum" body="trunk"/>
    <magnetometer name="compass" site="imu"/>
  </sensor>
</mujoco>
"""


SLIDES = """<motor name="left_slide" joint="left_slide"/>
    <motor name="right_slide" joint="right_slide" gear="-1"/>"""
LATE = SLIDES.replace("/>", ' delay="0.01" nsample="6"/>')


def find(xml: str = ROBOT, **config: object) -> tuple[mujoco.MjModel, RobotMirror]:
    model = mujoco.MjModel.from_xml_string(xml)
    layout = make_layout(model, "cpu", dtype=torch.float64)
    return model, find_mirror(model, layout, MirrorConfig(**{"names": NAMES, "tolerance": 1e-6, **config}))  # pyright: ignore[reportArgumentType]


def observe(model: mujoco.MjModel, qpos: np.ndarray, qvel: np.ndarray, ctrl: np.ndarray) -> mujoco.MjData:
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:], data.ctrl[:] = qpos, qvel, ctrl
    mujoco.mj_forward(model, data)
    return data


def test_bodies_and_sensors_of_a_mirrored_state_are_mirrored() -> None:
    model, mirror = find()
    rng = np.random.default_rng(1)
    assert list(mirror.unknown) == ["compass"]
    for _ in range(5):
        qpos = model.qpos0.copy()
        mujoco.mj_integratePos(model, qpos, rng.normal(0.0, 0.4, model.nv), 1.0)
        qvel, ctrl = rng.normal(size=model.nv), rng.uniform(-0.4, 0.4, model.nu)
        one = observe(model, qpos, qvel, ctrl)
        other = observe(model, mirror.qpos @ qpos, mirror.qvel @ qvel, mirror.ctrl @ ctrl)
        for name in ("trunk", "neck", "left_leg", "left_foot", "left_arm"):
            image = name.replace("left", "right")
            for there, here in ((name, image), (image, name)):
                np.testing.assert_allclose(
                    other.body(here).xipos, mirror.reflection @ one.body(there).xipos, atol=1e-9, err_msg=here
                )
        read = mirror.sensordata @ one.sensordata
        for index in range(model.nsensor):
            sensor = model.sensor(index)
            columns = slice(sensor.adr[0], sensor.adr[0] + sensor.dim[0])
            wanted, got = other.sensordata[columns], read[columns]
            if sensor.name == "compass":
                continue
            if sensor.type[0] == mujoco.mjtSensor.mjSENS_FRAMEQUAT and wanted @ got < 0:
                got = -got
            np.testing.assert_allclose(got, wanted, atol=1e-6 * max(1.0, np.abs(wanted).max()), err_msg=sensor.name)


def test_a_mirror_applied_twice_changes_nothing() -> None:
    model, mirror = find()
    for name in ("qpos", "qvel", "ctrl"):
        matrix = getattr(mirror, name)
        np.testing.assert_allclose(matrix @ matrix, np.eye(len(matrix)), atol=1e-8, err_msg=name)
    twice = mirror.sensordata @ mirror.sensordata
    known = np.ones(model.nsensordata, dtype=bool)
    known[model.sensor("compass").adr[0] : model.sensor("compass").adr[0] + 3] = False
    np.testing.assert_allclose(twice, np.diag(known.astype(float)), atol=1e-8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('axis="-1 0.5 0"', 'axis="-1 0.4 0"'), "the axis of joint right_hip is not the image"),
        (
            ('range="-1 0.5"/>\n        <geom', 'range="-1 0.6"/>\n        <geom'),
            r"right_hip is not .*: it is -0\.01745 0\.01047, and the image is -0\.01745 0\.008727",
        ),
        (('ctrlrange="-1 0.5"', 'ctrlrange="-1 0.6"'), r"ctrlrange of actuator right_hip .*: it is -1 0\.6, and"),
        (('pos="0 -0.1 0" euler', 'pos="0 -0.13 0" euler'), "joint right_hip is not where the image of joint left_hip"),
        (('kp="20" ctrlrange="-1 0.5"', 'kp="90" ctrlrange="-1 0.5"'), "accelerates otherwise than its image"),
        ((SLIDES, LATE.replace('gear="-1"', 'gear="-2"')), "accelerates otherwise than its image"),
        (('<motor name="left_slide"', '<motor name="left_slide" delay="0.01" nsample="6"'), "have different delays"),
        (('name="right_force"', 'name="right_push_back"'), "would be right_force, and the robot has none of that name"),
    ],
)
def test_what_is_not_symmetric_is_named(change: tuple[str, str], words: str) -> None:
    assert change[0] in ROBOT
    find(ROBOT.replace(SLIDES, LATE))
    with pytest.raises(RequestError, match=words):
        find(ROBOT.replace(*change))


def test_sensors_that_no_name_pairs_are_not_their_own_images() -> None:
    touch = '<touch name="touch_l" site="left_sole"/><touch name="touch_r" site="right_sole"/></sensor>'
    xml = ROBOT.replace("</sensor>", touch).replace('"left_place"', '"place_l"').replace('"right_place"', '"place_r"')
    _, mirror = find(xml)
    for name in ("touch_l", "touch_r", "place_l", "place_r"):
        assert mirror.unknown[name] == "its image is on another part"
    _, mirror = find(xml, names={**NAMES, "(touch|place)_l": r"\1_r"})
    assert list(mirror.unknown) == ["compass"]


@pytest.mark.parametrize("late", ['delay="0.01" nsample="6"', 'interval="0.02" nsample="6"'])
def test_sensors_that_measure_at_different_times_are_not_images(late: str) -> None:
    angle = '<jointpos name="left_angle"'
    _, mirror = find(ROBOT.replace(angle, f"{angle} {late}"))
    assert mirror.unknown["left_angle"] == "its image is a sensor of another type, delay or interval"


@pytest.mark.parametrize(("pattern", "image"), [("(", "x"), ("left_hip", r"\2")])
def test_an_expression_that_is_wrong_is_named(pattern: str, image: str) -> None:
    with pytest.raises(RequestError) as error:
        find(names={pattern: image})
    assert str(error.value).startswith(f"--env.robot.mirror.names {pattern} {image}: ")


def test_without_names_every_part_would_be_its_own_image() -> None:
    with pytest.raises(RequestError, match="joint left_hip is not where the image of joint left_hip is"):
        find(names={})


def test_an_arm_with_its_wrist_to_one_side_has_no_mirror_image() -> None:
    """The built-in arm is a UR5e: its wrist is 13 cm beside the plane of its shoulder."""
    config = load_task("Arm-Reach").env
    model = load_model(config)
    layout = make_layout(model, "cpu", dtype=torch.float64)
    with pytest.raises(RequestError, match="joint wrist_2 is not where the image of joint wrist_2 is"):
        find_mirror(model, layout, config.robot.mirror)


def test_mocap_bodies_are_mirrored_where_keyframe_home_has_them() -> None:
    targets = """<body name="left_target" mocap="true"/><body name="right_target" mocap="true"/></worldbody>
    <keyframe><key name="home" mpos="0 0.5 0  0 -0.5 0" mquat="0.8 0 0 0.6  0 0.6 0.8 0"/></keyframe>"""
    model, mirror = find(ROBOT.replace("</worldbody>", targets))
    data = make_start(model)
    mujoco.mj_kinematics(model, data)
    left, right = (data.body(f"{side}_target").xmat.reshape(3, 3) for side in ("left", "right"))
    np.testing.assert_allclose(mirror.body_frames["left_target"], left.T @ mirror.reflection @ right, atol=1e-8)
    assert np.abs(mirror.body_frames["left_target"] - mirror.reflection).max() > 0.5
