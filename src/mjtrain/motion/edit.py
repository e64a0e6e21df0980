"""Edit motions: another frame rate, a part, repetitions, a seam that closes."""

import numpy as np
import torch

from mjtrain.motion.motion import FPS, MAX_FRAMES, Motion
from mjtrain.runtime.errors import RequestError
from mjtrain.sim import rotations


def resample(motion: Motion, fps: float) -> Motion:
    """Return a motion at another frame rate, from the same first frame and no longer.

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
        raise RequestError(
            f"from {start_s:g} s to {end_s:g} s: must be within the motion, which is {motion.length_s:.2f} s long"
        )
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
