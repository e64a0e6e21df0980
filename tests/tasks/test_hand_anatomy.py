"""The hand has the joints, lengths and masses that were published."""

import math

import mujoco
import numpy as np
import pytest

from mjtrain_tasks.models import HAND

FINGERS = ("FF", "MF", "RF", "LF")

# Degrees. Shadow Robot, user guide of the Dexterous Hand, "Ranges".
RANGES = {
    **{f"{finger}J1": (0, 90) for finger in FINGERS},
    **{f"{finger}J2": (0, 90) for finger in FINGERS},
    **{f"{finger}J3": (-15, 90) for finger in FINGERS},
    **{f"{finger}J4": (-20, 20) for finger in FINGERS},
    "LFJ5": (0, 45),
    "THJ1": (-15, 90),
    "THJ2": (-40, 40),
    "THJ3": (-12, 12),
    "THJ4": (0, 70),
    "THJ5": (-60, 60),
    "WRJ1": (-40, 28),
    "WRJ2": (-28, 10),
}

# kg. gymnasium-robotics 1.4.2, hand/robot.xml.
MASSES = {
    "forearm": 4.0,
    "wrist": 0.3,
    "palm": 0.3,
    **{f"{finger}_knuckle": 0.008 for finger in FINGERS},
    **{f"{finger}_proximal": 0.014 for finger in FINGERS},
    **{f"{finger}_middle": 0.012 for finger in FINGERS},
    **{f"{finger}_distal": 0.01 for finger in FINGERS},
    "LF_metacarpal": 0.075,
    "TH_base": 0.01,
    "TH_proximal": 0.016,
    "TH_hub": 0.002,
    "TH_middle": 0.016,
    "TH_distal": 0.016,
}

# mm between the places of two bodies, in the pose of all joints at zero. The same file, except for the palm.
LENGTHS = {
    **{(f"{finger}_proximal", f"{finger}_middle"): 45.0 for finger in FINGERS},
    **{(f"{finger}_middle", f"{finger}_distal"): 25.0 for finger in FINGERS},
    ("TH_proximal", "TH_hub"): 38.0,
    ("TH_middle", "TH_distal"): 32.0,
    ("wrist", "palm"): 34.0,
    ("palm", "MF_knuckle"): math.hypot(99.0, 11.0),  # 99 mm along the palm, as Shadow Robot's C5 specification has it
    ("MF_knuckle", "FF_knuckle"): math.hypot(22.0, 4.0),
    ("MF_knuckle", "RF_knuckle"): math.hypot(22.0, 4.0),
    ("RF_knuckle", "LF_knuckle"): math.hypot(23.0, 7.0),
    ("palm", "TH_base"): math.hypot(34.0, 9.0, 29.0),
}

# mm from the place of the distal body to the end of the finger. The same file.
TIPS = {**dict.fromkeys(FINGERS, 26.0), "TH": 27.5}

# N m. The same file.
TORQUES = {
    **{f"{finger}J{joint}": 0.9 for finger in FINGERS for joint in (3, 4)},
    **{f"{finger}J0": 0.7245 for finger in FINGERS},
    "LFJ5": 0.9,
    "THJ1": 0.81,
    "THJ2": 0.99,
    "THJ3": 0.99,
    "THJ4": 1.45,
    "THJ5": 2.3722,
    "WRJ1": 2.175,
    "WRJ2": 4.785,
}


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(HAND))


def hinges(model: mujoco.MjModel) -> list[str]:
    return [
        model.joint(joint).name for joint in range(model.njnt) if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_HINGE
    ]


def straight(model: mujoco.MjModel) -> mujoco.MjData:
    """Return the hand with all joints at zero."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    return data


def without_cube() -> mujoco.MjModel:
    spec = mujoco.MjSpec.from_file(str(HAND))
    for key in list(spec.keys):
        spec.delete(key)
    spec.delete(spec.body("cube"))
    return spec.compile()


def test_24_joints_have_the_published_ranges(model: mujoco.MjModel) -> None:
    assert len(RANGES) == 24
    ranges = {name: tuple(np.degrees(model.joint(name).range)) for name in hinges(model)}
    assert ranges.keys() == RANGES.keys()
    for name, bounds in RANGES.items():
        assert ranges[name] == pytest.approx(bounds, abs=0.05), name


def test_bodies_have_the_published_masses(model: mujoco.MjModel) -> None:
    masses = {model.body(body).name: model.body_mass[body] for body in range(1, model.nbody)}
    assert masses.pop("cube") == pytest.approx(0.07)
    assert masses == pytest.approx(MASSES)


def test_phalanges_and_palm_have_the_published_lengths(model: mujoco.MjModel) -> None:
    data = straight(model)
    for (near, far), length in LENGTHS.items():
        distance = 1000 * np.linalg.norm(data.body(near).xpos - data.body(far).xpos)
        assert distance == pytest.approx(length, abs=0.01), (near, far)
    for finger, length in TIPS.items():
        distance = 1000 * np.linalg.norm(data.body(f"{finger}_distal").xpos - data.site(f"{finger}_tip").xpos)
        assert distance == pytest.approx(length, abs=0.01), finger
        geom = model.geom(f"{finger}_distal")
        assert 2000 * (geom.size[1] + geom.size[0] / 2) == pytest.approx(length, abs=0.01), finger


def test_palm_is_as_wide_and_thick_as_published(model: mujoco.MjModel) -> None:
    """84 mm and 22 mm: Shadow Robot, technical specification of the C5."""
    data = straight(model)
    palm = data.body("palm")
    sides, faces = [], []
    for name in ("palm", "heel", "LF_metacarpal"):
        center = palm.xmat.reshape(3, 3).T @ (data.geom(name).xpos - palm.xpos)
        size = model.geom(name).size
        sides += [center[1] - size[1], center[1] + size[1]]
        faces += [center[2] - size[2], center[2] + size[2]]
    assert 1000 * (max(sides) - min(sides)) == pytest.approx(84.0, abs=0.5)
    assert 1000 * (max(faces) - min(faces)) == pytest.approx(22.0, abs=0.01)


def test_20_actuators_have_the_published_torques(model: mujoco.MjModel) -> None:
    assert len(TORQUES) == model.nu == 20
    for name, torque in TORQUES.items():
        assert model.actuator(name).forcerange == pytest.approx([-torque, torque]), name


def test_every_joint_but_the_coupled_ones_has_its_actuator(model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    for actuator in range(model.nu):
        mujoco.mj_resetData(model, data)
        mujoco.mj_fwdPosition(model, data)
        moment = np.zeros((model.nu, model.nv))
        mujoco.mju_sparse2dense(
            moment, data.actuator_moment, data.moment_rownnz, data.moment_rowadr, data.moment_colind
        )
        driven = {
            name: moment[actuator, model.joint(name).dofadr[0]]
            for name in hinges(model)
            if moment[actuator, model.joint(name).dofadr[0]]
        }
        name = model.actuator(actuator).name
        expected = (f"{name[:2]}J1", f"{name[:2]}J2") if name.endswith("J0") else (name,)
        assert driven == dict.fromkeys(expected, 1.0)


def test_one_motor_flexes_the_two_distal_joints() -> None:
    model = without_cube()
    data = mujoco.MjData(model)
    for finger in FINGERS:
        data.actuator(f"{finger}J0").ctrl = 3.0
    for _ in range(300):
        mujoco.mj_step(model, data)
    for finger in FINGERS:
        assert data.joint(f"{finger}J1").qpos[0] > 1.2
        assert data.joint(f"{finger}J2").qpos[0] > 1.2


def test_joint_1_is_never_flexed_further_than_joint_2() -> None:
    """Shadow Robot, user guide, "Finger": joint 1 angle <= joint 2 angle; a push on joint 1 flexes joint 2."""
    model = without_cube()
    data = mujoco.MjData(model)
    for _ in range(100):
        mujoco.mj_step(model, data)
    before = {finger: data.joint(f"{finger}J2").qpos[0] for finger in FINGERS}
    for finger in FINGERS:
        data.joint(f"{finger}J1").qfrc_applied = 0.5
        data.actuator(f"{finger}J0").ctrl = 0.5
    for _ in range(300):
        mujoco.mj_step(model, data)
    for finger in FINGERS:
        distal, middle = data.joint(f"{finger}J1").qpos[0], data.joint(f"{finger}J2").qpos[0]
        assert middle > before[finger] + 0.2
        assert distal < middle + 0.05
