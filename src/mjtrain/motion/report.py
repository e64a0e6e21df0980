"""What a motion asks of a robot, as figures in a table."""

from dataclasses import dataclass

import mujoco
import numpy as np

from mjtrain.deployment import rotations
from mjtrain.motion.motion import Motion
from mjtrain.motion.skeleton import Skeleton

_CONTACT_M = 0.02
"""A foot whose lowest point is below this height counts as on the ground."""


@dataclass(frozen=True, kw_only=True)
class MotionReport:
    """Figures of a motion; those that need the robot are None without."""

    frames: int
    fps: float
    length_s: float
    joints: int
    speed: float
    """Mean horizontal speed of the root, in m/s."""
    lowest_m: float | None = None
    """Height of the lowest point of any colliding geom of the robot in any frame, in m, with the ground at 0."""
    lowest_in_mean_m: float | None = None
    """The same, in the mean over frames."""
    limit_overrun: float | None = None
    """Largest distance of a joint from its range; 0 where none leaves it."""
    limit_overrun_unit: str = "rad"
    """Its unit: rad, or m where that joint is a slide."""
    limit_overrun_joint: str = ""
    """Which joint that is."""
    jerk: float
    """Root mean square of the third derivative of all joints, in rad/s^3."""
    foot_slip: float | None = None
    """Mean horizontal speed of the bodies at the ends of the limbs while they are on the ground, in m/s."""

    def rows(self) -> list[tuple[str, str]]:
        """Return the names and values of a table."""
        rows = [
            ("frames", f"{self.frames}"),
            ("frames per second", f"{self.fps:g}"),
            ("length", f"{self.length_s:.2f} s"),
            ("joints", f"{self.joints}"),
            ("mean speed", f"{self.speed:.2f} m/s"),
            ("jerk of the joints", f"{self.jerk:.0f} rad/s^3"),
        ]
        if self.limit_overrun is None:
            return rows
        where = f" ({self.limit_overrun_joint})" if self.limit_overrun_joint else ""
        return [
            *rows,
            ("lowest point", "-" if self.lowest_m is None else f"{self.lowest_m:.3f} m"),
            ("lowest point, mean", "-" if self.lowest_in_mean_m is None else f"{self.lowest_in_mean_m:.3f} m"),
            ("beyond joint limits", f"{self.limit_overrun:.3f} {self.limit_overrun_unit}{where}"),
            ("foot slip", "-" if self.foot_slip is None else f"{self.foot_slip:.3f} m/s"),
        ]


def report_motion(motion: Motion, skeleton: Skeleton | None) -> MotionReport:
    """Measure a motion."""
    steps = np.linalg.norm(np.diff(motion.root_pos[:, :2], axis=0), axis=1)
    jerk = np.diff(motion.joint_pos, n=3, axis=0) * motion.fps**3
    report = {
        "frames": motion.num_frames,
        "fps": motion.fps,
        "length_s": motion.length_s,
        "joints": len(motion.joints),
        "speed": float(steps.mean() * motion.fps),
        "jerk": float(np.sqrt(np.square(jerk).mean())) if jerk.size else 0.0,
    }
    if skeleton is None:
        return MotionReport(**report)
    heights = lowest_points(motion, skeleton)
    lowest = heights.min(axis=1, initial=np.inf)
    overruns = [
        (float(np.maximum(low - column, column - high).max()), name)
        for name, column in zip(motion.joints, motion.joint_pos.T, strict=True)
        for low, high in [skeleton.layout.joint_range.get(name, (-np.inf, np.inf))]
    ]
    overrun, joint = max(overruns, default=(0.0, ""))
    is_slide = overrun > 0 and skeleton.model.joint(joint).type[0] == mujoco.mjtJoint.mjJNT_SLIDE
    return MotionReport(
        **report,
        lowest_m=float(lowest.min()) if np.isfinite(lowest).all() else None,
        lowest_in_mean_m=float(lowest.mean()) if np.isfinite(lowest).all() else None,
        limit_overrun=max(overrun, 0.0),
        limit_overrun_unit="m" if is_slide else "rad",
        limit_overrun_joint=joint if overrun > 0 else "",
        foot_slip=_foot_slip(motion, skeleton, heights),
    )


def lowest_points(motion: Motion, skeleton: Skeleton) -> np.ndarray:
    """Return the height of the lowest point of each colliding geom of the robot, in m, infinite for others.

    Exact for spheres, capsules, cylinders, boxes and ellipsoids; of meshes it is the lowest point of the box around
    them. Shape (num_frames, ngeom).
    """
    model, states = skeleton.model, skeleton.body_states(motion)
    heights = np.full((motion.num_frames, model.ngeom), np.inf)
    for geom in range(model.ngeom):
        body = int(model.geom_bodyid[geom]) - 1
        is_own = model.body_rootid[body + 1] == skeleton.root_body
        if not is_own or not (model.geom_contype[geom] or model.geom_conaffinity[geom]):
            continue
        rotation, offset = np.empty(9), model.geom_pos[geom]
        mujoco.mju_quat2Mat(rotation, model.geom_quat[geom])
        # The world's z axis in the frame of the body, contiguous so that products of it are summed in one order.
        up = np.ascontiguousarray(rotations.matrix(states.quaternions[:, body].numpy().T)[2].T)
        center = states.positions[:, body, 2].numpy() + up @ offset
        heights[:, geom] = center - _reach_down(model, geom, up @ rotation.reshape(3, 3))
    return heights


def _reach_down(model: mujoco.MjModel, geom: int, up: np.ndarray) -> np.ndarray:
    """Return how far a geom reaches below its centre, for the vertical in its frame. Shape (num_frames,)."""
    size, kind = model.geom_size[geom], mujoco.mjtGeom(model.geom_type[geom])
    axis, across = np.abs(up[:, 2]), np.sqrt(np.clip(1 - up[:, 2] ** 2, 0, 1))
    if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        return np.full(len(up), size[0])
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        return size[0] + size[1] * axis
    if kind == mujoco.mjtGeom.mjGEOM_CYLINDER:
        return size[0] * across + size[1] * axis
    if kind == mujoco.mjtGeom.mjGEOM_ELLIPSOID:
        return np.linalg.norm(up * size, axis=1)
    if kind == mujoco.mjtGeom.mjGEOM_BOX:
        return np.abs(up) @ size
    center, half = model.geom_aabb[geom, :3], model.geom_aabb[geom, 3:]
    return np.abs(up) @ half - up @ center


def _foot_slip(motion: Motion, skeleton: Skeleton, heights: np.ndarray) -> float | None:
    model = skeleton.model
    parents = set(model.body_parentid[1:].tolist())
    speeds = skeleton.body_states(motion).linear_velocities[..., :2].norm(dim=-1).numpy()
    slips = []
    for body in range(1, model.nbody):
        geoms = np.flatnonzero(model.geom_bodyid == body)
        if body in parents or not len(geoms):
            continue
        stands = heights[:, geoms].min(axis=1) < _CONTACT_M
        slips.append(speeds[stands, body - 1])
    found = np.concatenate(slips) if slips else np.zeros(0)
    return float(found.mean()) if len(found) else None
