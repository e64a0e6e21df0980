"""Write the clips of Quadruped-Track: keyframes of trunk and feet, splines of fifth degree, and inverse kinematics.

    uv run benchmarks/quadruped_clips.py

The files are tasks/src/mjtrain_tasks/quadruped_track/clips/{sit,bow,paw}.npz. A foot that does not move in a keyframe
stays exactly where it stands. trot.npz there is a recording of a trained policy:

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
from mjtrain_tasks.models import QUADRUPED

CLIPS = Path(__file__).parents[1] / "tasks" / "src" / "mjtrain_tasks" / "quadruped_track" / "clips"
FPS = 50
LEGS = ("FR", "FL", "RR", "RL")
FOOT_RADIUS_M = 0.02


@dataclass(frozen=True, kw_only=True)
class Key:
    """A pose, relative to standing."""

    time_s: float
    trunk_m: tuple[float, float, float] = (0.0, 0.0, 0.0)
    pitch: float = 0.0
    """In rad; the nose goes down where it is positive."""
    roll: float = 0.0
    feet_m: dict[str, tuple[float, float, float]] = field(default_factory=dict)


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
    Key(time_s=1.5, **LEAN, feet_m={"FR": (0.06, -0.01, 0.12)}),
    Key(time_s=1.9, **LEAN, feet_m={"FR": (0.08, -0.01, 0.15)}),
    Key(time_s=2.3, **LEAN, feet_m={"FR": (0.06, -0.01, 0.12)}),
    Key(time_s=2.9, **LEAN),
    Key(time_s=3.5),
    Key(time_s=3.7),
)


def make_clip(skeleton: Skeleton, keys: tuple[Key, ...]) -> Motion:
    """Return the motion through some keys, at rest at the first and the last."""
    model = skeleton.model
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("home").id)
    mujoco.mj_kinematics(model, data)
    feet = np.array([data.site(f"{leg}_foot").xpos.copy() for leg in LEGS])
    lift = FOOT_RADIUS_M - feet[:, 2].mean()
    feet[:, 2] = FOOT_RADIUS_M
    root = data.qpos[:3] + np.array([0.0, 0.0, lift])
    time_s = np.arange(0, keys[-1].time_s + 1e-9, 1 / FPS)
    trunk = _spline(keys, time_s, [[*key.trunk_m, key.pitch, key.roll] for key in keys])
    moved = [_spline(keys, time_s, [key.feet_m.get(leg, (0.0, 0.0, 0.0)) for key in keys]) for leg in LEGS]
    frames = []
    for row, offsets in zip(trunk, np.stack(moved, axis=1), strict=True):
        data.qpos[:3] = root + row[:3]
        mujoco.mju_euler2Quat(data.qpos[3:7], [row[4], row[3], 0.0], "XYZ")
        _reach(model, data, feet + offsets)
        frames.append(data.qpos.copy())
    return skeleton.from_qpos(np.stack(frames), FPS)


def _spline(keys: tuple[Key, ...], time_s: np.ndarray, values: list) -> np.ndarray:
    """Interpolate from rest to rest by polynomials of fifth degree, which have the least jerk."""
    times, points = np.array([key.time_s for key in keys]), np.array(values, dtype=float)
    begin = np.clip(np.searchsorted(times, time_s, side="right") - 1, 0, len(keys) - 2)
    share = ((time_s - times[begin]) / (times[begin + 1] - times[begin]))[:, None]
    return points[begin] + share**3 * (10 - 15 * share + 6 * share**2) * (points[begin + 1] - points[begin])


def _reach(model: mujoco.MjModel, data: mujoco.MjData, feet: np.ndarray) -> None:
    """Bring the feet to places by their legs, from the pose of the frame before: Newton's method for each leg."""
    worst = 0.0
    for _ in range(30):
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        worst = 0.0
        for leg, wanted in zip(LEGS, feet, strict=True):
            site = model.site(f"{leg}_foot").id
            error = wanted - data.site_xpos[site]
            worst = max(worst, float(np.abs(error).max()))
            jacobian = np.zeros((3, model.nv))
            mujoco.mj_jacSite(model, data, jacobian, None, site)
            dofs = [int(model.joint(f"{leg}_{part}").dofadr[0]) for part in ("hip", "thigh", "calf")]
            columns = [int(model.joint(f"{leg}_{part}").qposadr[0]) for part in ("hip", "thigh", "calf")]
            data.qpos[columns] += np.linalg.solve(jacobian[:, dofs], error)
        if worst < 1e-9:
            return
    raise ValueError(f"a foot is {worst:.3f} m from where it should be")


def main() -> None:
    """Write the clips, and print what they ask of the robot."""
    skeleton = load_skeleton(RobotConfig(file=str(QUADRUPED)))
    CLIPS.mkdir(exist_ok=True)
    for name, keys in (("sit", SIT), ("bow", BOW), ("paw", PAW)):
        motion = make_clip(skeleton, keys)
        write_motion(CLIPS / f"{name}.npz", motion)
        print(name, "; ".join(f"{key} {value}" for key, value in report_motion(motion, skeleton).rows()))


if __name__ == "__main__":
    main()
