"""Write the clips of Quadruped-Track and Humanoid-Track: keyframes, splines of fifth degree, and inverse kinematics.

    uv run benchmarks/motion_clips.py

The files are tasks/src/mjtrain_tasks/{quadruped,humanoid}_track/clips/*.npz. A foot that does not move in a keyframe
stays exactly where it stands. The humanoid's pelvis is placed so that its centre of mass is above the point that a key
names, so that it can stand in every frame. quadruped_track/clips/trot.npz is a recording of a trained policy:

    uv run mjtrain train Quadruped-Velocity-Flat
    uv run mjtrain motion record RUN trot.npz --command velocity --values 0.6 0 0 --length-s 4
"""

from dataclasses import dataclass, field
from pathlib import Path

import mujoco
import numpy as np

from mjtrain.config import RobotConfig
from mjtrain.motion.files import write_motion
from mjtrain.motion.motion import Motion
from mjtrain.motion.report import report_motion
from mjtrain.motion.skeleton import Skeleton, load_skeleton
from mjtrain_tasks.models import HUMANOID, QUADRUPED

TASKS = Path(__file__).parents[1] / "tasks" / "src" / "mjtrain_tasks"
FPS = 50


@dataclass(frozen=True, kw_only=True)
class Body:
    """A robot, and how it stands."""

    file: Path
    feet: tuple[str, ...]
    """Sites of the feet."""
    legs: tuple[tuple[str, ...], ...]
    """Joints that move each of them: 3 bring a foot to a place, 6 also keep it level."""
    foot_height_m: float
    """Height of the sites of the feet above the ground, standing."""
    balances: bool
    """Keys place the centre of mass above the ground, instead of the trunk."""


QUADRUPED_BODY = Body(
    file=QUADRUPED,
    feet=("FR_foot", "FL_foot", "RR_foot", "RL_foot"),
    legs=tuple(tuple(f"{leg}_{part}" for part in ("hip", "thigh", "calf")) for leg in ("FR", "FL", "RR", "RL")),
    foot_height_m=0.02,
    balances=False,
)
LEG_JOINTS = ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll")
HUMANOID_BODY = Body(
    file=HUMANOID,
    feet=("left_foot", "right_foot"),
    legs=tuple(tuple(f"{side}_{joint}_joint" for joint in LEG_JOINTS) for side in ("left", "right")),
    foot_height_m=0.0,
    balances=True,
)


@dataclass(frozen=True, kw_only=True)
class Key:
    """A pose, relative to standing."""

    time_s: float
    trunk_m: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Offset of the root; where the robot balances, x and y are those of its centre of mass from the feet's middle."""
    pitch: float = 0.0
    """In rad; the nose goes down where it is positive."""
    roll: float = 0.0
    feet_m: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    joints: dict[str, float] = field(default_factory=dict)
    """Other joints, in rad."""


SIT = (
    Key(time_s=0.0),
    Key(time_s=0.3),
    Key(time_s=1.3, trunk_m=(-0.03, 0.0, -0.055), pitch=-0.42),
    Key(time_s=2.3, trunk_m=(-0.03, 0.0, -0.055), pitch=-0.42),
    Key(time_s=3.3),
    Key(time_s=3.6),
)
BOW = (
    Key(time_s=0.0),
    Key(time_s=0.3),
    Key(time_s=1.2, trunk_m=(-0.03, 0.0, -0.05), pitch=0.42),
    Key(time_s=2.0, trunk_m=(-0.03, 0.0, -0.05), pitch=0.42),
    Key(time_s=2.9),
    Key(time_s=3.2),
)
LEAN = {"trunk_m": (-0.035, 0.045, -0.01), "roll": 0.06, "pitch": -0.05}
PAW = (
    Key(time_s=0.0),
    Key(time_s=0.2),
    Key(time_s=0.9, **LEAN),
    Key(time_s=1.5, **LEAN, feet_m={"FR_foot": (0.06, -0.01, 0.12)}),
    Key(time_s=1.9, **LEAN, feet_m={"FR_foot": (0.08, -0.01, 0.15)}),
    Key(time_s=2.3, **LEAN, feet_m={"FR_foot": (0.06, -0.01, 0.12)}),
    Key(time_s=2.9, **LEAN),
    Key(time_s=3.5),
    Key(time_s=3.7),
)


def both(**joints: float) -> dict[str, float]:
    """Return the offsets of joints of both arms, whose right side is the mirror image of the left."""
    sides = (("left", 1.0), ("right", -1.0))
    return {
        f"{side}_{name}_joint": value * (1.0 if name.endswith(("pitch", "elbow")) else sign)
        for side, sign in sides
        for name, value in joints.items()
    }


ARMS_AHEAD = both(shoulder_pitch=-1.2, elbow=0.5)
SQUAT = (
    Key(time_s=0.0),
    Key(time_s=0.3),
    Key(time_s=1.5, trunk_m=(0.0, 0.0, -0.25), pitch=0.35, joints=ARMS_AHEAD),
    Key(time_s=2.1, trunk_m=(0.0, 0.0, -0.25), pitch=0.35, joints=ARMS_AHEAD),
    Key(time_s=3.3),
    Key(time_s=3.6),
)
DOWN = {"pitch": 0.45, "joints": {"waist_pitch_joint": 0.3, **both(shoulder_pitch=-0.6, elbow=0.3)}}
HUMANOID_BOW = (
    Key(time_s=0.0),
    Key(time_s=0.3),
    Key(time_s=1.5, trunk_m=(0.0, 0.0, -0.02), **DOWN),
    Key(time_s=2.1, trunk_m=(0.0, 0.0, -0.02), **DOWN),
    Key(time_s=3.3),
    Key(time_s=3.6),
)
RAISED = {"right_shoulder_pitch_joint": -0.6, "right_shoulder_roll_joint": -1.3, "right_elbow_joint": -0.7}
WAVE = (
    Key(time_s=0.0),
    Key(time_s=0.3),
    Key(time_s=1.2, joints=RAISED),
    *(
        Key(time_s=1.2 + 0.4 * beat, joints=RAISED | {"right_shoulder_yaw_joint": 0.5 if beat % 2 else -0.5})
        for beat in range(1, 6)
    ),
    Key(time_s=3.6, joints=RAISED),
    Key(time_s=4.6),
    Key(time_s=4.8),
)
OVER_LEFT = (0.0, 0.1, 0.0)
ONE_LEG = (
    Key(time_s=0.0),
    Key(time_s=0.2),
    Key(time_s=1.2, trunk_m=OVER_LEFT),
    Key(time_s=2.2, trunk_m=OVER_LEFT, feet_m={"right_foot": (0.0, 0.0, 0.15)}),
    Key(time_s=3.2, trunk_m=OVER_LEFT, feet_m={"right_foot": (0.0, 0.0, 0.15)}),
    Key(time_s=4.2, trunk_m=OVER_LEFT),
    Key(time_s=5.2),
    Key(time_s=5.4),
)
KICK = (
    Key(time_s=0.0),
    Key(time_s=0.2),
    Key(time_s=1.2, trunk_m=OVER_LEFT),
    Key(time_s=1.9, trunk_m=OVER_LEFT, feet_m={"right_foot": (-0.08, 0.0, 0.1)}),
    Key(time_s=2.4, trunk_m=OVER_LEFT, feet_m={"right_foot": (0.25, 0.0, 0.12)}),
    Key(time_s=3.1, trunk_m=OVER_LEFT, feet_m={"right_foot": (0.0, 0.0, 0.1)}),
    Key(time_s=3.7, trunk_m=OVER_LEFT),
    Key(time_s=4.7),
    Key(time_s=4.9),
)
CLIPS = {
    "quadruped_track": (QUADRUPED_BODY, {"sit": SIT, "bow": BOW, "paw": PAW}),
    "humanoid_track": (
        HUMANOID_BODY,
        {"squat": SQUAT, "bow": HUMANOID_BOW, "wave": WAVE, "one_leg": ONE_LEG, "kick": KICK},
    ),
}
"""The clips of each task, by their names."""


def make_clip(skeleton: Skeleton, body: Body, keys: tuple[Key, ...]) -> Motion:
    """Return the motion through some keys, at rest at the first and the last."""
    model = skeleton.model
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    mujoco.mj_kinematics(model, data)
    feet = np.array([data.site(foot).xpos.copy() for foot in body.feet])
    lift = body.foot_height_m - feet[:, 2].mean()
    feet[:, 2] = body.foot_height_m
    root = data.qpos[:3] + np.array([0.0, 0.0, lift])
    time_s = np.arange(0, keys[-1].time_s + 1e-9, 1 / FPS)
    trunk = _spline(keys, time_s, [[*key.trunk_m, key.pitch, key.roll] for key in keys])
    moved = [_spline(keys, time_s, [key.feet_m.get(foot, (0.0, 0.0, 0.0)) for key in keys]) for foot in body.feet]
    others = sorted({name for key in keys for name in key.joints})
    bent = _spline(keys, time_s, [[key.joints.get(name, 0.0) for name in others] for key in keys])
    columns = [int(model.joint(name).qposadr[0]) for name in others]
    home = data.qpos[columns].copy()
    frames = []
    for row, offsets, angles in zip(trunk, np.stack(moved, axis=1), bent, strict=True):
        data.qpos[columns] = home + angles
        data.qpos[:3] = root + row[:3]
        mujoco.mju_euler2Quat(data.qpos[3:7], [row[4], row[3], 0.0], "XYZ")
        _reach(model, data, body, feet + offsets)
        if body.balances:
            _balance(model, data, body, feet + offsets, feet.mean(axis=0)[:2] + row[:2])
        frames.append(data.qpos.copy())
    return skeleton.from_qpos(np.stack(frames), FPS)


def _spline(keys: tuple[Key, ...], time_s: np.ndarray, values: list) -> np.ndarray:
    """Interpolate from rest to rest by polynomials of fifth degree, which have the least jerk."""
    times, points = np.array([key.time_s for key in keys]), np.array(values, dtype=float)
    begin = np.clip(np.searchsorted(times, time_s, side="right") - 1, 0, len(keys) - 2)
    share = ((time_s - times[begin]) / (times[begin + 1] - times[begin]))[:, None]
    return points[begin] + share**3 * (10 - 15 * share + 6 * share**2) * (points[begin + 1] - points[begin])


def _balance(model: mujoco.MjModel, data: mujoco.MjData, body: Body, feet: np.ndarray, above: np.ndarray) -> None:
    """Move the root in the plane until the centre of mass is above a point; the feet stay where they are."""
    for _ in range(50):
        mujoco.mj_comPos(model, data)
        missing = above - data.subtree_com[0, :2]
        if np.abs(missing).max() < 1e-7:
            return
        data.qpos[:2] += missing
        _reach(model, data, body, feet)
    raise ValueError(f"the centre of mass does not come above {above}")


def _reach(model: mujoco.MjModel, data: mujoco.MjData, body: Body, feet: np.ndarray) -> None:
    """Bring the feet to places by their legs, from the pose of the frame before: Newton's method for each leg."""
    worst = 0.0
    for _ in range(30):
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        worst = 0.0
        for foot, joints, wanted in zip(body.feet, body.legs, feet, strict=True):
            site = model.site(foot).id
            dofs = [int(model.joint(name).dofadr[0]) for name in joints]
            columns = [int(model.joint(name).qposadr[0]) for name in joints]
            jacobian = np.zeros((6, model.nv))
            mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], site)
            level, turn = np.empty(4), np.empty(3)
            mujoco.mju_mat2Quat(level, np.ascontiguousarray(data.site_xmat[site].reshape(3, 3).T).ravel())
            mujoco.mju_quat2Vel(turn, level, 1.0)
            error = np.concatenate([wanted - data.site_xpos[site], turn])[: len(joints)]
            worst = max(worst, float(np.abs(error).max()))
            data.qpos[columns] += np.linalg.solve(jacobian[: len(joints), dofs], error)
        if worst < 1e-9:
            return
    raise ValueError(f"a foot is {worst:.3f} m or rad from where it should be")


def main() -> None:
    """Write the clips, and print what they ask of the robot."""
    for task, (body, clips) in CLIPS.items():
        skeleton = load_skeleton(RobotConfig(file=str(body.file)))
        folder = TASKS / task / "clips"
        folder.mkdir(parents=True, exist_ok=True)
        for name, keys in clips.items():
            motion = make_clip(skeleton, body, keys)
            write_motion(folder / f"{name}.npz", motion)
            print(name, "; ".join(f"{key} {value}" for key, value in report_motion(motion, skeleton).rows()))


if __name__ == "__main__":
    main()
