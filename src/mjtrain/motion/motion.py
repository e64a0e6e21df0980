"""A reference motion as data, independent of any simulator."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from mjtrain.runtime.errors import RequestError

FPS = (5.0, 1000.0)
"""Fewest and most frames per second."""

MAX_FRAMES = 1_000_000
"""A motion may have this many frames; that is 5 hours at 50 per second."""

_MAX_SPEED = 30.0
"""m/s of the root between two frames, above which frames are missing."""

_MAX_TURN = 80.0
"""rad/s likewise of the root or a hinge, and m/s of a slide."""


@dataclass(frozen=True, kw_only=True)
class Motion:
    """Poses of a robot at equal intervals of time. Arrays are float64."""

    fps: float
    """Frames per second."""

    root_pos: np.ndarray
    """Position of the body with the free joint, in m in the world's frame, z up. Shape (num_frames, 3)."""

    root_quat: np.ndarray
    """Its orientation (w, x, y, z), of length 1. Shape (num_frames, 4)."""

    joint_pos: np.ndarray
    """Positions of hinges and slides, in rad or m. Shape (num_frames, num_joints)."""

    joints: tuple[str, ...]
    """Their names, in the order of the columns."""

    contacts: np.ndarray | None = None
    """Which bodies touch the ground, if the file says so. Boolean, shape (num_frames, num_contacts)."""

    contact_bodies: tuple[str, ...] = ()
    """Names of these bodies."""

    @property
    def num_frames(self) -> int:
        """Number of frames."""
        return len(self.root_pos)

    @property
    def length_s(self) -> float:
        """Time from the first to the last frame, in s."""
        return (self.num_frames - 1) / self.fps

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values in the named fields."""
        return replace(self, **changes)


def make_motion(
    fps: float,
    root_pos: np.ndarray,
    root_quat: np.ndarray,
    joint_pos: np.ndarray,
    joints: tuple[str, ...],
    contacts: np.ndarray | None = None,
    contact_bodies: tuple[str, ...] = (),
) -> Motion:
    """Check what a file says, and return it as a motion whose quaternions have length 1 and do not change sign.

    Raises:
        RequestError: It has one frame, a frame rate outside FPS, shapes that do not fit, values that are not finite,
            quaternions of another length, or steps from frame to frame that no robot makes.
    """
    arrays = {"root_pos": root_pos, "root_quat": root_quat, "joint_pos": joint_pos}
    root_pos, root_quat, joint_pos = (np.asarray(array, dtype=np.float64) for array in arrays.values())
    num_frames = len(root_pos) if root_pos.ndim else 0
    if not FPS[0] <= fps <= FPS[1]:  # NaN included
        raise RequestError(f"has {fps:g} frames per second; a motion has {FPS[0]:g} to {FPS[1]:g}")
    wanted = {"root_pos": (num_frames, 3), "root_quat": (num_frames, 4), "joint_pos": (num_frames, len(joints))}
    for (name, shape), array in zip(wanted.items(), (root_pos, root_quat, joint_pos), strict=True):
        if array.shape != shape:
            raise RequestError(f"{name} has shape {array.shape}; it must be {shape}")
    if not 2 <= num_frames <= MAX_FRAMES:
        raise RequestError(f"has {num_frames} frame{'s' * (num_frames != 1)}; a motion has 2 to {MAX_FRAMES:,}")
    if len(set(joints)) < len(joints):
        raise RequestError("two columns of joint_pos have the same name")
    for name, array in zip(wanted, (root_pos, root_quat, joint_pos), strict=True):
        if not np.isfinite(array).all():
            frame = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
            raise RequestError(f"{name} is not finite in frame {frame}")
    lengths = np.linalg.norm(root_quat, axis=1)
    if np.abs(lengths - 1).max() > 0.01:
        frame = int(np.abs(lengths - 1).argmax())
        raise RequestError(f"root_quat has length {lengths[frame]:.3g} in frame {frame}, not 1 (w, x, y, z)")
    if contacts is not None:
        contacts = np.asarray(contacts)
        if contacts.dtype.kind not in "biuf" or not np.isfinite(contacts).all():
            raise RequestError("contacts must be booleans or finite numbers, where 0 means no contact")
        contacts = contacts.astype(bool)
        if contacts.shape != (num_frames, len(contact_bodies)):
            raise RequestError(f"contacts has shape {contacts.shape}; it must be {(num_frames, len(contact_bodies))}")
    motion = Motion(
        fps=float(fps),
        root_pos=root_pos,
        root_quat=_continuous(root_quat / lengths[:, None]),
        joint_pos=joint_pos,
        joints=tuple(joints),
        contacts=contacts,
        contact_bodies=tuple(contact_bodies),
    )
    _check_gaps(motion)
    return motion


def _continuous(quaternions: np.ndarray) -> np.ndarray:
    """Choose the sign of each quaternion that is nearer to the one before."""
    flips = np.einsum("ij,ij->i", quaternions[1:], quaternions[:-1]) < 0
    signs = np.concatenate([[1.0], np.where(np.cumsum(flips) % 2, -1.0, 1.0)])
    return quaternions * signs[:, None]


def _check_gaps(motion: Motion) -> None:
    """Raise a RequestError where the motion jumps, as it does where frames are missing."""
    angles = 2 * np.arccos(np.clip(np.abs(np.einsum("ij,ij->i", motion.root_quat[1:], motion.root_quat[:-1])), 0, 1))
    parts = [
        ("the root moves by", "m", np.linalg.norm(np.diff(motion.root_pos, axis=0), axis=1)[:, None], _MAX_SPEED),
        ("the root turns by", "rad", angles[:, None], _MAX_TURN),
        ("joint {} moves by", "rad or m", np.abs(np.diff(motion.joint_pos, axis=0)), _MAX_TURN),
    ]
    for words, unit, steps, most in parts:
        if steps.size and steps.max() * motion.fps > most:
            frame, column = np.unravel_index(int(steps.argmax()), steps.shape)
            name = motion.joints[column] if "{}" in words else ""
            raise RequestError(
                f"has a gap at {frame / motion.fps:.2f} s: {words.format(name)} {steps[frame, column]:.2g} {unit} from "
                f"frame {frame} to the next, at {motion.fps:g} frames per second"
            )
