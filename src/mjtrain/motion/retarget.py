"""Fit the motion of a body of other proportions to a robot whose joints have the same names."""

import numpy as np
import torch

from mjtrain.motion.motion import Motion
from mjtrain.motion.report import lowest_points
from mjtrain.motion.skeleton import Skeleton
from mjtrain.runtime.errors import RequestError
from mjtrain.sim import rotations

_SCALES = (0.1, 10.0)
"""Smallest and largest factor of a path."""

_WALKING = 0.5
"""m/s of the root from which the length of steps says how large the body was."""


def retarget(motion: Motion, skeleton: Skeleton) -> Motion:
    """Return a motion with the same angles of joints, and a path of the root on which the robot's feet slip least.

    The path is scaled: by the steps that the robot's legs make with these angles, or, if the root stays near its place,
    by its height. Then the motion is raised or lowered until the lowest point is on the ground in the fifth of the
    frames in which it is lowest. Joints that the motion lacks stay in the default pose.
    """
    foreign = [name for name in motion.joints if name not in skeleton.joints]
    if foreign:
        raise RequestError(f"--retarget: needs joints of the same names; the robot lacks {', '.join(foreign[:6])}")
    home = [float(skeleton.layout.default_qpos[skeleton.layout.qpos[name].start]) for name in skeleton.joints]
    joint_pos = np.tile(home, (motion.num_frames, 1))
    for column, name in enumerate(motion.joints):
        joint_pos[:, skeleton.joints.index(name)] = motion.joint_pos[:, column]
    posed = motion.replace(joint_pos=joint_pos, joints=skeleton.joints, contacts=None, contact_bodies=())
    heights = lowest_points(posed, skeleton)
    if not np.isfinite(heights.min(axis=1)).all():
        raise RequestError("--retarget: no geom of the robot collides, so it is not known where its soles are")
    scale = _find_scale(posed, skeleton, heights)
    if not _SCALES[0] <= scale <= _SCALES[1]:
        raise RequestError(
            f"--retarget: by its steps the path is {scale:.2f} times as long on this robot, which cannot be; give one "
            "in which the lowest point of the body stands, such as a walk"
        )
    start = motion.root_pos[0] * [1.0, 1.0, 0.0]
    scaled = posed.replace(root_pos=start + scale * (motion.root_pos - start))
    lowest = heights.min(axis=1) + scaled.root_pos[:, 2] - posed.root_pos[:, 2]
    return scaled.replace(root_pos=scaled.root_pos - [0.0, 0.0, float(np.quantile(lowest, 0.2))])


def _find_scale(motion: Motion, skeleton: Skeleton, heights: np.ndarray) -> float:
    """Return how much smaller the root's path is on the robot: median of the speed of the point that stands."""
    steps = np.diff(motion.root_pos[:, :2], axis=0)
    length = np.linalg.norm(steps, axis=1)
    if length.mean() * motion.fps < _WALKING:
        above = motion.root_pos[:, 2] - heights.min(axis=1)
        return float(above.mean() / motion.root_pos[:, 2].mean())
    geoms = heights.argmin(axis=1)[:-1]
    bodies = torch.from_numpy(skeleton.model.geom_bodyid[geoms].astype(int) - 1)
    offsets, states = torch.from_numpy(skeleton.model.geom_pos[geoms]), skeleton.body_states(motion)

    def points(frames: torch.Tensor) -> np.ndarray:
        turned = rotations.rotate(states.quaternions[frames, bodies], offsets)
        return (states.positions[frames, bodies] + turned)[:, :2].numpy() - motion.root_pos[frames.numpy(), :2]

    first = torch.arange(len(steps))
    moved = points(first + 1) - points(first)
    moves = length > 1e-4
    return float(np.median(-(moved * steps).sum(axis=1)[moves] / np.square(length[moves])))
