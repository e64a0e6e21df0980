"""Edit motions: resample, cut, lift, center, loop, blend the seam, and retarget from a body of other proportions."""

import numpy as np
import torch

from mjtrain.motion.motion import FPS, MAX_FRAMES, Motion
from mjtrain.motion.report import lowest_points
from mjtrain.motion.skeleton import Skeleton
from mjtrain.runtime.errors import RequestError
from mjtrain.sim import rotations

_SCALES = (0.1, 10.0)
"""Smallest and largest factor of a path."""

_WALKING = 0.5
"""m/s of the root from which the length of steps says how large the body was."""


def resample(motion: Motion, fps: float) -> Motion:
    """Return a motion at another frame rate, from the same first frame and with at most the same duration.

    Positions are interpolated linearly, the orientation of the root along the shortest arc.
    """
    if not FPS[0] <= fps <= FPS[1]:
        raise RequestError(f"{fps:g} frames per second: must be from {FPS[0]:g} to {FPS[1]:g}")
    count = int(np.floor(motion.length_s * fps + 1e-6)) + 1
    if not 2 <= count <= MAX_FRAMES:
        raise RequestError(f"{fps:g} frames per second: makes {count:,} frames of {motion.length_s:g} s")
    places = np.minimum(np.arange(count) * (motion.fps / fps), motion.num_frames - 1)
    before = np.minimum(places.astype(int), motion.num_frames - 2)
    share = (places - before)[:, None]

    def lerp(values: np.ndarray) -> np.ndarray:
        return values[before] + share * (values[before + 1] - values[before])

    nearest = np.round(places).astype(int)
    return motion.replace(
        fps=float(fps),
        root_pos=lerp(motion.root_pos),
        root_quat=slerp(motion.root_quat[before], motion.root_quat[before + 1], share),
        joint_pos=lerp(motion.joint_pos),
        contacts=None if motion.contacts is None else motion.contacts[nearest],
    )


def slerp(first: np.ndarray, second: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Interpolate rotations (w, x, y, z) along the shortest arc. Shapes (..., 4), (..., 4) and (..., 1)."""
    one, other = torch.from_numpy(first), torch.from_numpy(second)
    turn = rotations.rotation_vector(rotations.multiply(rotations.conjugate(one), other))
    return rotations.multiply(one, rotations.from_rotation_vector(turn * torch.from_numpy(share))).numpy()


def cut(motion: Motion, start_s: float = 0.0, end_s: float | None = None) -> Motion:
    """Return the frames from start_s to end_s, both included; two must remain."""
    end_s = motion.length_s if end_s is None else end_s
    if not 0 <= start_s < end_s <= motion.length_s + 0.5 / motion.fps:
        raise RequestError(f"from {start_s:g} s to {end_s:g} s: must be within the motion of {motion.length_s:.2f} s")
    first, last = round(start_s * motion.fps), min(round(end_s * motion.fps), motion.num_frames - 1)
    if last <= first:
        raise RequestError(f"from {start_s:g} s to {end_s:g} s: has fewer than two frames")
    frames = slice(first, last + 1)
    return motion.replace(
        root_pos=motion.root_pos[frames],
        root_quat=motion.root_quat[frames],
        joint_pos=motion.joint_pos[frames],
        contacts=None if motion.contacts is None else motion.contacts[frames],
    )


def lift(motion: Motion, height_m: float) -> Motion:
    """Return a motion that is higher by height_m, in m."""
    return motion.replace(root_pos=motion.root_pos + np.array([0.0, 0.0, height_m]))


def center(motion: Motion) -> Motion:
    """Return a motion that begins at the origin of the plane, with the root's x axis along the world's."""
    position, quaternion = torch.from_numpy(motion.root_pos), torch.from_numpy(motion.root_quat)
    by = rotations.from_yaw(-rotations.yaw(quaternion[0])).expand(motion.num_frames, 4)
    start = position[0] * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    return motion.replace(
        root_pos=rotations.rotate(by, position - start).numpy(), root_quat=rotations.multiply(by, quaternion).numpy()
    )


def loop(motion: Motion, cycles: int) -> Motion:
    """Repeat a motion; each repetition begins where and in the direction in which the one before has ended.

    The last frame is taken for the first of the next cycle. `blend_seam` makes the pose of both the same.
    """
    if cycles < 1 or cycles * motion.num_frames > MAX_FRAMES:
        raise RequestError(f"{cycles} cycles of {motion.num_frames} frames: must be 1 to {MAX_FRAMES:,} frames in all")
    position, quaternion = torch.from_numpy(motion.root_pos), torch.from_numpy(motion.root_quat)
    by = rotations.from_yaw(rotations.yaw(quaternion[-1]) - rotations.yaw(quaternion[0]))
    positions, quaternions = [position], [quaternion]
    level = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    for _ in range(cycles - 1):
        last = positions[-1]
        positions.append(
            rotations.rotate(by.expand(len(last), 4), last - last[0]) + last[0] + (last[-1] - last[0]) * level
        )
        quaternions.append(rotations.multiply(by.expand(len(last), 4), quaternions[-1]))
    joints = [motion.joint_pos] + [motion.joint_pos[1:]] * (cycles - 1)
    contacts = motion.contacts
    return motion.replace(
        root_pos=np.concatenate([positions[0].numpy()] + [part[1:].numpy() for part in positions[1:]]),
        root_quat=np.concatenate([quaternions[0].numpy()] + [part[1:].numpy() for part in quaternions[1:]]),
        joint_pos=np.concatenate(joints),
        contacts=None if contacts is None else np.concatenate([contacts] + [contacts[1:]] * (cycles - 1)),
    )


def blend_seam(motion: Motion, blend_s: float) -> Motion:
    """Let the end of a cyclic motion approach its beginning: joints, height and tilt of the last frame are the first's.

    Place and heading are left as they are. The last blend_s seconds change.
    """
    if not 0 < blend_s <= motion.length_s:
        raise RequestError(f"a seam of {blend_s:g} s: must be more than 0 and at most {motion.length_s:.2f} s")
    time_s = np.arange(motion.num_frames) / motion.fps
    progress = np.clip((time_s - (motion.length_s - blend_s)) / blend_s, 0, 1)[:, None]
    weight = progress**2 * (3 - 2 * progress)
    root_pos = motion.root_pos.copy()
    root_pos[:, 2:] += weight * (motion.root_pos[0, 2] - motion.root_pos[-1, 2])
    quaternion = torch.from_numpy(motion.root_quat)
    turned = rotations.from_yaw(rotations.yaw(quaternion[-1]) - rotations.yaw(quaternion[0]))
    missing = rotations.multiply(rotations.conjugate(quaternion[-1]), rotations.multiply(turned, quaternion[0]))
    step = rotations.from_rotation_vector(rotations.rotation_vector(missing)[None] * torch.from_numpy(weight))
    return motion.replace(
        root_pos=root_pos,
        root_quat=rotations.multiply(quaternion, step).numpy(),
        joint_pos=motion.joint_pos + weight * (motion.joint_pos[0] - motion.joint_pos[-1]),
    )


def retarget(motion: Motion, skeleton: Skeleton) -> Motion:
    """Fit a motion of another body to a robot whose joints have the same names, so that its feet slip least.

    The angles of joints stay. The path of the root is scaled: by the steps that the robot's legs make with these
    angles, or, if the root stays near its place, by its height. Then the motion is raised or lowered until the lowest
    point is on the ground in the fifth of the frames in which it is lowest. Joints that the motion lacks stay in the
    default pose.
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
