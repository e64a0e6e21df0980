"""Motions as data: files there and back, what is refused, kinematics and edits."""

import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjtrain.config import MirrorConfig, RobotConfig
from mjtrain.motion.edit import blend_seam, cut, loop, resample, retarget
from mjtrain.motion.files import read_motion, write_motion
from mjtrain.motion.motion import Motion, make_motion
from mjtrain.motion.report import report_motion
from mjtrain.motion.skeleton import Skeleton, load_skeleton
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.kinematics import ForwardKinematics
from mjtrain_tasks import humanoid_track, quadruped_track
from mjtrain_tasks.models import CARTPOLE, HUMANOID, QUADRUPED

ROBOT = RobotConfig(file=str(QUADRUPED), mirror=MirrorConfig(names={"(F|R)L_(.*)": r"\1R_\2"}))
ODD = """
<mujoco><worldbody>
  <body pos="0 0 1"><freejoint name="root"/><geom size="0.1"/>
    <body pos="0.1 0.2 0.3" quat="0.9 0.1 0.3 0.2"><geom size="0.1"/>
      <joint name="a" axis="1 2 3" pos="0.1 0 0"/><joint name="b" axis="0 1 0" pos="0 0.2 0" ref="0.2"/>
      <joint name="c" type="slide" axis="0 1 1" ref="0.1"/>
      <body pos="0 0.1 -0.3"><joint type="ball" pos="0.05 0 0"/><geom size="0.1"/><body pos="0 0 0.3"/></body>
    </body>
    <body pos="-0.1 0.2 0.3"><joint name="d" axis="0 0 1"/><geom size="0.1"/></body>
  </body>
  <body pos="2 0 0"><joint name="e" axis="0 1 0" pos="0 0 0.4"/><geom size="0.1"/></body>
</worldbody></mujoco>
"""


@pytest.fixture(scope="module")
def skeleton() -> Skeleton:
    return load_skeleton(ROBOT)


@pytest.fixture(scope="module")
def motion(skeleton: Skeleton) -> Motion:
    """Two seconds of a turn, along formulas."""
    return along_formulas(skeleton, np.arange(101) / 50, 50)


def along_formulas(skeleton: Skeleton, time_s: np.ndarray, fps: float) -> Motion:
    half, zero = 0.15 * time_s, 0 * time_s
    return make_motion(
        fps,
        np.stack([0.5 * time_s, 0.1 * np.sin(time_s), 0.28 + zero], axis=1),
        np.stack([np.cos(half), zero, zero, np.sin(half)], axis=1),
        skeleton.layout.default_qpos[7:].numpy() + np.outer(np.sin(3 * time_s), np.linspace(-0.3, 0.3, 12)),
        skeleton.joints,
    )


@pytest.mark.parametrize("xml", [ODD, QUADRUPED.read_text()], ids=["odd", "quadruped"])
def test_kinematics_are_those_of_mujoco(xml: str) -> None:
    model = mujoco.MjModel.from_xml_string(xml)
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    mujoco.mj_integratePos(model, data.qpos, rng.normal(size=model.nv), 1.0)
    data.qvel[:] = rng.normal(size=model.nv)
    mujoco.mj_forward(model, data)
    found = ForwardKinematics(model, "cpu", torch.float64).compute(
        torch.from_numpy(data.qpos[None]), torch.from_numpy(data.qvel[None])
    )
    velocities = np.zeros((model.nbody, 6))
    for body in range(model.nbody):
        mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, velocities[body], 0)
    assert np.abs(found.positions[0].numpy() - data.xpos).max() < 1e-12
    same = np.einsum("ij,ij->i", found.quaternions[0].numpy(), data.xquat)
    assert np.abs(np.abs(same) - 1).max() < 1e-12
    assert np.abs(found.angular_velocities[0].numpy() - velocities[:, :3]).max() < 1e-12
    assert np.abs(found.linear_velocities[0].numpy() - velocities[:, 3:]).max() < 1e-12


@pytest.mark.parametrize("mjlab", [False, True], ids=["ours", "mjlab"])
def test_there_and_back(tmp_path: Path, motion: Motion, skeleton: Skeleton, mjlab: bool) -> None:
    touching = np.arange(101)[:, None] % np.array([2, 3]) == 0
    given = motion.replace(contacts=touching, contact_bodies=("FR_foot", "FL_foot"))
    write_motion(tmp_path / "a.npz", given, skeleton, mjlab=mjlab)
    back = read_motion(tmp_path / "a.npz", skeleton)
    for name in ("root_pos", "root_quat", "joint_pos"):
        assert np.abs(getattr(back, name) - getattr(motion, name)).max() < 1e-6, name
    assert (back.fps, back.joints) == (50, motion.joints)
    assert mjlab or (back.contacts is not None and (back.contacts == touching).all())


def test_an_object_before_the_robot_is_not_part_of_it(tmp_path: Path) -> None:
    robot = """<body pos="0 0 1"><freejoint name="root"/><geom size="0.1"/><body pos="0 0 -0.2">
      <joint name="hip" axis="0 1 0"/><geom type="capsule" size="0.03" fromto="0 0 0 0 0 -0.4"/></body></body>"""
    box = '<body pos="2 0 0.2"><freejoint/><geom type="box" size="0.2 0.2 0.2"/></body>'
    skeletons = []
    for name, bodies in (("alone", robot), ("both", box + robot)):
        actuator = '<actuator><motor joint="hip"/></actuator>'
        (file := tmp_path / f"{name}.xml").write_text(f"<mujoco><worldbody>{bodies}</worldbody>{actuator}</mujoco>")
        skeletons.append(load_skeleton(RobotConfig(file=str(file))))
    alone, both = skeletons
    time_s, level = np.arange(51) / 50, np.tile([1.0, 0.0, 0.0, 0.0], (51, 1))
    path, swing = np.stack([0.1 * time_s, 0 * time_s, 0.9 + 0 * time_s], axis=1), 0.1 * np.sin(time_s)
    motion = make_motion(50, path, level, swing[:, None], ("hip",))
    write_motion(tmp_path / "mjlab.npz", motion, both, mjlab=True)
    assert read_motion(tmp_path / "mjlab.npz", both).root_pos == pytest.approx(path)
    assert report_motion(motion, both) == report_motion(motion, alone)
    assert retarget(motion, both).root_pos == pytest.approx(retarget(motion, alone).root_pos)


def test_velocities_are_those_of_the_motion(motion: Motion, skeleton: Skeleton) -> None:
    """Central differences at 50 Hz are off by (rate * dt)^2 / 6 of the value, which is 6e-4 for 3 rad/s."""
    time_s = np.arange(101) / 50
    qvel = skeleton.qvel(motion)[1:-1].numpy()
    rates = np.outer(3 * np.cos(3 * time_s), np.linspace(-0.3, 0.3, 12))[1:-1]
    assert np.abs(qvel[:, 6:] - rates).max() < 1e-3
    assert np.abs(qvel[:, :3] - [0.5, 0, 0])[:, 0].max() < 1e-9
    assert np.abs(qvel[:, 3:6] - [0, 0, 0.3]).max() < 1e-9
    states = skeleton.body_states(motion)
    moved = torch.gradient(states.positions, dim=0)[0] * 50
    assert (moved - states.linear_velocities)[1:-1].abs().max() < 5e-3


def test_text_formats(tmp_path: Path, motion: Motion, skeleton: Skeleton) -> None:
    rows = np.concatenate([motion.root_pos, motion.root_quat[:, [1, 2, 3, 0]], motion.joint_pos], axis=1)
    np.savetxt(tmp_path / "a.csv", rows, delimiter=",", fmt="%.17g")
    content = {"LoopMode": "Wrap", "FrameDuration": 0.02, "Frames": rows.tolist()}
    (tmp_path / "a.txt").write_text(json.dumps(content))
    for file in ("a.csv", "a.txt"):  # spreadsheets begin a text with a mark
        (tmp_path / file).write_text((tmp_path / file).read_text(), encoding="utf-8-sig")
    for back in (read_motion(tmp_path / "a.csv", skeleton, fps=50), read_motion(tmp_path / "a.txt", skeleton)):
        assert np.abs(back.joint_pos - motion.joint_pos).max() < 1e-12
        assert np.abs(back.root_quat - motion.root_quat).max() < 1e-12
        assert back.fps == pytest.approx(50)


def test_a_humanoid_of_deepmimic_stands_up_in_z(tmp_path: Path) -> None:
    """Turned by 90 degrees about its own vertical, with both hips bent forward by 0.4 rad."""
    bent, level = [np.cos(0.2), 0, 0, np.sin(0.2)], [1, 0, 0, 0]
    limbs = [*level, *level, *bent, -0.5, *level, *level, 0.3, *bent, -0.5, *level, *level, 0.3]
    frame = [0.03, 1.0, 0.9, -2.0, np.sqrt(0.5), 0, np.sqrt(0.5), 0, *limbs]
    (tmp_path / "walk.txt").write_text(json.dumps({"Loop": "wrap", "Frames": [frame] * 3}))
    motion = read_motion(tmp_path / "walk.txt")
    assert motion.root_pos[0] == pytest.approx([1.0, 2.0, 0.9])
    assert motion.root_quat[0] == pytest.approx([np.sqrt(0.5), 0, 0, np.sqrt(0.5)])
    joints = dict(zip(motion.joints, motion.joint_pos[0], strict=True))
    assert joints["left_hip_pitch_joint"] == pytest.approx(-0.4)
    assert joints["right_hip_yaw_joint"] == pytest.approx(0)
    assert joints["left_knee_joint"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("robot", "clip", "within_m"),
    [(HUMANOID, humanoid_track.CLIPS / "squat.npz", 1e-6), (QUADRUPED, quadruped_track.CLIPS / "trot.npz", 0.15)],
    ids=["in place", "walking"],
)
def test_a_motion_of_a_larger_body_is_fitted(robot: Path, clip: Path, within_m: float) -> None:
    """Of a body that is 1.4 times as large; the wrists of the humanoid are not in the motion."""
    skeleton = load_skeleton(RobotConfig(file=str(robot)))
    known = read_motion(clip, skeleton)
    kept = [column for column, name in enumerate(known.joints) if "wrist" not in name]
    larger = known.replace(
        root_pos=known.root_pos[0] * [1, 1, 0] + 1.4 * (known.root_pos - known.root_pos[0] * [1, 1, 0]),
        joint_pos=known.joint_pos[:, kept],
        joints=tuple(known.joints[column] for column in kept),
    )
    found = retarget(larger, skeleton)
    assert found.joints == skeleton.joints
    assert np.abs(found.joint_pos - known.joint_pos).max() < 1e-9
    assert np.abs(found.root_pos - known.root_pos).max() < within_m


def test_resampling_follows_the_formulas(skeleton: Skeleton, motion: Motion) -> None:
    found = resample(motion, 73)
    wanted = along_formulas(skeleton, np.arange(147) / 73, 73)
    assert found.num_frames == 147
    assert np.abs(found.root_quat - wanted.root_quat).max() < 1e-9  # a constant rate of turning: slerp is exact
    assert np.abs(found.joint_pos - wanted.joint_pos).max() < 9 * 0.3 * 0.02**2 / 8 + 1e-9  # f'' h^2 / 8
    assert np.abs(resample(resample(motion, 200), 50).joint_pos - motion.joint_pos).max() < 1e-9


def test_the_mirror_image_of_a_contact_is_that_of_its_body(skeleton: Skeleton, motion: Motion) -> None:
    touches = np.arange(motion.num_frames)[:, None] % 3 == 0
    one_sided = motion.replace(contacts=touches, contact_bodies=("FR_calf",))
    mirrored = skeleton.mirror(one_sided)
    assert mirrored.contact_bodies == ("FL_calf",)
    assert mirrored.contacts is not None
    assert np.array_equal(mirrored.contacts, touches)
    with pytest.raises(RequestError, match="contact_bodies wing: the robot has no such bodies"):
        skeleton.mirror(motion.replace(contacts=touches, contact_bodies=("wing",)))


@pytest.mark.parametrize("value", [np.nan, "False"])
def test_contacts_that_are_not_numbers_are_refused(motion: Motion, tmp_path: Path, value: float | str) -> None:
    write_motion(tmp_path / "a.npz", motion.replace(contacts=np.ones((motion.num_frames, 1)), contact_bodies=("FR",)))
    with np.load(tmp_path / "a.npz") as arrays:
        np.savez(tmp_path / "b.npz", **{**arrays, "contacts": np.full((motion.num_frames, 1), value)})
    with pytest.raises(RequestError, match=r"b\.npz: contacts must be booleans or finite numbers"):
        read_motion(tmp_path / "b.npz")


def test_a_duration_that_no_float_holds_is_refused(motion: Motion, skeleton: Skeleton, tmp_path: Path) -> None:
    frame = [*motion.root_pos[0], *motion.root_quat[0], *motion.joint_pos[0]]
    (tmp_path / "a.txt").write_text(json.dumps({"FrameDuration": 10**400, "Frames": [frame] * 3}))
    with pytest.raises(RequestError, match="a frame has no positive duration"):
        read_motion(tmp_path / "a.txt", skeleton)


def test_a_file_without_contact_bodies_is_read_again(tmp_path: Path, motion: Motion) -> None:
    write_motion(tmp_path / "a.npz", motion.replace(contacts=np.zeros((motion.num_frames, 0), bool)))
    assert read_motion(tmp_path / "a.npz").contact_bodies == ()


def test_an_edit_that_could_not_be_read_again_is_not_written(tmp_path: Path, motion: Motion) -> None:
    jump = motion.root_pos + np.where(np.arange(motion.num_frames) > 9, 50.0, 0.0)[:, None]
    write_motion(tmp_path / "a.npz", motion)
    with pytest.raises(RequestError, match=r"a\.npz: not written, because the motion would not be valid: has a gap"):
        write_motion(tmp_path / "a.npz", motion.replace(root_pos=jump))
    assert read_motion(tmp_path / "a.npz").num_frames == motion.num_frames


def test_a_robot_that_touches_nothing_has_no_lowest_point(motion: Motion, tmp_path: Path) -> None:
    geom = '<geom size="0.1" contype="0" conaffinity="0"/>'
    joint = f'<body><joint name="j" axis="0 1 0"/>{geom}</body>'
    file = tmp_path / "robot.xml"
    file.write_text(
        f'<mujoco><worldbody><body name="b"><freejoint name="root"/>{geom}{joint}</body></worldbody></mujoco>'
    )
    skeleton = load_skeleton(RobotConfig(file=str(file)))
    report = report_motion(motion.replace(joint_pos=motion.joint_pos[:, :1], joints=("j",)), skeleton)
    assert report.lowest_m is None
    assert ("lowest point", "-") in report.rows()
    assert json.dumps(asdict(report), allow_nan=False)


def test_a_slide_leaves_its_range_by_metres(motion: Motion, tmp_path: Path) -> None:
    joint = '<joint name="j" type="slide" range="0 0.5" limited="true"/>'
    file = tmp_path / "robot.xml"
    file.write_text(
        '<mujoco><worldbody><body name="b"><freejoint name="root"/><geom size="0.1"/>'
        f'<body>{joint}<geom size="0.1"/></body></body></worldbody></mujoco>'
    )
    moved = motion.replace(joint_pos=np.full((motion.num_frames, 1), 0.75), joints=("j",))
    report = report_motion(moved, load_skeleton(RobotConfig(file=str(file))))
    assert ("beyond joint limits", "0.250 m (j)") in report.rows()


def test_a_mirror_twice_is_none(skeleton: Skeleton, motion: Motion) -> None:
    mirrored = skeleton.mirror(motion)
    assert mirrored.root_pos[:, 1] == pytest.approx(-motion.root_pos[:, 1])
    assert np.abs(mirrored.joint_pos - motion.joint_pos).max() > 0.1
    twice = skeleton.mirror(mirrored)
    assert np.abs(twice.joint_pos - motion.joint_pos).max() < 1e-9
    assert np.abs(twice.root_quat - motion.root_quat).max() < 1e-9


def test_a_loop_continues_where_it_ended(skeleton: Skeleton, motion: Motion) -> None:
    seamless = blend_seam(motion, 0.4)
    assert seamless.joint_pos[-1] == pytest.approx(seamless.joint_pos[0])
    twice = loop(seamless, 2)
    assert twice.num_frames == 201
    assert np.linalg.norm(np.diff(twice.root_pos, axis=0), axis=1).max() < 0.012
    turn = 2 * np.arctan2(twice.root_quat[:, 3], twice.root_quat[:, 0])
    assert turn[-1] == pytest.approx(1.2)
    assert np.diff(turn) == pytest.approx(0.006, abs=1e-6)
    assert cut(twice, 1.0, 1.5).num_frames == 26
    assert report_motion(twice, skeleton).speed == pytest.approx(0.5, rel=0.02)


def _permuted(arrays: dict[str, Any]) -> dict[str, Any]:
    order = [0, 2, 1, *range(3, 17)]
    return arrays | {name: arrays[name][:, order] for name in ("body_pos_w", "body_quat_w")}


def _with(name: str, change: Any) -> Any:
    return lambda arrays: arrays | {name: change(arrays[name])}


def _gapped(arrays: dict[str, Any]) -> dict[str, Any]:
    return (
        arrays
        | {name: np.delete(arrays[name], slice(30, 60), axis=0) * [5, 1, 1] for name in ["root_pos"]}
        | {name: np.delete(arrays[name], slice(30, 60), axis=0) for name in ("root_quat", "joint_pos")}
    )


def _nan(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array[7, 2] = np.nan
    return array


REFUSED = {
    "permuted": (True, _permuted, "FR_thigh should be"),
    "fewer bodies": (True, _with("body_pos_w", lambda a: a[:, :16]), "17 bodies"),
    "foreign joints": (False, _with("joint_names", lambda a: np.char.add(a, "_joint")), "FR_hip_joint"),
    "nan": (False, _with("joint_pos", _nan), "joint_pos is not finite in frame 7"),
    "nan in bodies": (True, _with("body_pos_w", lambda a: np.where(a > 0.9, np.nan, a)), "not finite"),
    "one frame": (
        False,
        lambda arrays: arrays | {name: arrays[name][:1] for name in ("root_pos", "root_quat", "joint_pos")},
        "1 frame;",
    ),
    "slow": (False, _with("fps", lambda _: np.array(1.0)), "1 frames per second"),
    "two rates": (False, _with("fps", lambda _: np.array([50.0, 60.0])), "fps"),
    "gap": (False, _gapped, "gap at 0.58 s"),
    "joint that jumps": (False, _with("joint_pos", lambda a: a + 3 * (np.arange(len(a)) > 9)[:, None]), "rad or m"),
    "short quaternion": (False, _with("root_quat", lambda a: a / 2), "length 0.5"),
    "missing key": (False, lambda arrays: {k: v for k, v in arrays.items() if k != "root_quat"}, "no root_quat"),
    "pickled": (False, _with("root_pos", lambda a: np.array(a.tolist(), dtype=object)), "pickled"),
    "texts": (False, _with("root_pos", lambda a: a.astype(str)), "root_pos is of type <U32; give numbers"),
    "names as bytes": (False, _with("joint_names", lambda a: a.astype("S")), "type |S8; give a list of names as str"),
    "names as objects": (False, _with("joint_names", lambda a: a.astype(object)), "save numbers, and names as str"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, motion: Motion, skeleton: Skeleton, case: str) -> None:
    mjlab, change, says = REFUSED[case]
    path = tmp_path / "a.npz"
    write_motion(path, motion, skeleton, mjlab=mjlab)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(path, **change(arrays))
    with pytest.raises(RequestError) as raised:
        read_motion(path, skeleton)
    assert says in str(raised.value)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_damage_is_said(tmp_path: Path, motion: Motion) -> None:
    write_motion(path := tmp_path / "a.npz", motion)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("joint_pos.npy")
        extra = int.from_bytes(content[member.header_offset + 28 : member.header_offset + 30], "little")
    content[member.header_offset + 30 + len("joint_pos.npy") + extra] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(RequestError, match=r"a\.npz: is not an NPZ file"):
        read_motion(path)
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({10**13}, 3), }}\n".encode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("root_pos.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(RequestError, match=r"a\.npz: is not an NPZ file"):
        read_motion(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("fps.npy", b"fifty")
    with pytest.raises(RequestError, match=r"a\.npz: fps is not an array"):
        read_motion(path)


def test_files_that_are_no_motions(tmp_path: Path, skeleton: Skeleton, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {
        "a.npz": ("text", "not an NPZ"),
        "a.csv": ("1,2,3\n", "3 columns"),
        "b.csv": ("a,b\n", "line 1"),
        "c.csv": ('"' + "1\n" * 70_000, "line 1"),
        "d.json": ('{"Frames": [[1' + "0" * 400 + "]]}", "Frames"),
        "a.json": ("{", "JSON"),
        "b.json": ('{"Frames": [[1, 2], [3]]}', "Frames"),
        "c.json": ('{"Frames": [[1, 2], [3, 4]]}', "2 numbers"),
        "a.bvh": ("", "ends in .npz"),
    }
    for name, (text, says) in contents.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(RequestError, match=says):
            read_motion(tmp_path / name, skeleton, fps=30)
    durations = [[0.1 * (1 + row), *[1.0] * 43] for row in range(3)]
    (tmp_path / "d.json").write_text(json.dumps({"Frames": durations}))
    with pytest.raises(RequestError, match="has a gap: frame"):
        read_motion(tmp_path / "d.json")
    with pytest.raises(RequestError, match="no such file"):
        read_motion(tmp_path / "none.npz")
    monkeypatch.setattr("mjtrain.motion.files.MAX_MIB", 0)
    np.savez_compressed(tmp_path / "big.npz", fps=np.zeros(1_000_000))
    with pytest.raises(RequestError, match="unpacks to 7 MiB"):
        read_motion(tmp_path / "big.npz")
    with pytest.raises(RequestError, match="free joint"):
        load_skeleton(RobotConfig(file=str(CARTPOLE)))
