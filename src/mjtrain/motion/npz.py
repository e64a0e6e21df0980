"""Motions as NPZ: ours, and mjlab's, which BeyondMimic's is too.

Ours holds what a motion is: fps, root_pos, root_quat, joint_pos and joint_names, and contacts with contact_bodies if
they are known. mjlab's holds fps, joint_pos, joint_vel and, for all bodies, body_pos_w, body_quat_w, body_lin_vel_w and
body_ang_vel_w, without any name.
"""

import lzma
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from mjtrain.motion.motion import Motion, make_motion
from mjtrain.motion.skeleton import Skeleton
from mjtrain.runtime.errors import RequestError

MAX_MIB = 512
"""A file that unpacks to more is refused."""

MJLAB = ("fps", "joint_pos", "joint_vel", "body_pos_w", "body_quat_w", "body_lin_vel_w", "body_ang_vel_w")
"""Arrays of mjlab's files."""

_OURS = ("fps", "root_pos", "root_quat", "joint_pos", "joint_names")
_NEAR_M = 0.02
"""How far the position of a body in mjlab's file may be from what the joints say."""


def read_npz(path: Path, skeleton: Skeleton | None) -> Motion:
    """Read a motion; mjlab's format needs the robot. An OSError of the file passes through."""
    arrays = _load(path)
    if "root_pos" not in arrays and "body_pos_w" in arrays:
        if skeleton is None:
            raise RequestError("is in mjlab's format, which has no names of joints; give --task or --robot")
        return _read_mjlab(_require(arrays, MJLAB), skeleton)
    arrays = _require(arrays, _OURS)
    return make_motion(
        _fps(arrays["fps"]),
        arrays["root_pos"],
        arrays["root_quat"],
        arrays["joint_pos"],
        _names(arrays["joint_names"], "joint_names"),
        arrays.get("contacts"),
        _names(arrays["contact_bodies"], "contact_bodies") if "contact_bodies" in arrays else (),
    )


def write_npz(file: IO[bytes], motion: Motion) -> None:
    """Write our format."""
    contacts = {}
    if motion.contacts is not None:
        contacts = {"contacts": motion.contacts, "contact_bodies": np.array(motion.contact_bodies, dtype=np.str_)}
    np.savez_compressed(
        file,
        fps=motion.fps,
        root_pos=motion.root_pos,
        root_quat=motion.root_quat,
        joint_pos=motion.joint_pos,
        joint_names=np.array(motion.joints, dtype=np.str_),
        **contacts,
    )


def write_mjlab(file: IO[bytes], motion: Motion, skeleton: Skeleton) -> None:
    """Write mjlab's format: joints and bodies in the order of the model, depth first."""
    states, qvel = skeleton.body_states(motion), skeleton.qvel(motion)
    order = [motion.joints.index(name) for name in skeleton.joints]
    np.savez_compressed(
        file,
        fps=np.array([motion.fps]),
        joint_pos=motion.joint_pos[:, order],
        joint_vel=qvel[:, [skeleton.layout.qvel[name].start for name in skeleton.joints]].numpy(),
        body_pos_w=states.positions.numpy(),
        body_quat_w=states.quaternions.numpy(),
        body_lin_vel_w=states.linear_velocities.numpy(),
        body_ang_vel_w=states.angular_velocities.numpy(),
    )


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(item.file_size for item in archive.infolist())
        if size > MAX_MIB << 20:
            raise RequestError(f"unpacks to {size >> 20} MiB; a motion has at most {MAX_MIB}")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:  # damaged or encrypted
        raise RequestError("is not an NPZ file") from error
    except ValueError as error:
        why = (
            "has pickled objects, which are never read" if "allow_pickle" in str(error) else f"cannot be read: {error}"
        )
        raise RequestError(why) from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # NumPy returns the bytes of a member that is not an array
            raise RequestError(f"{name} is not an array")
    return arrays


def _require(arrays: dict[str, np.ndarray], names: tuple[str, ...]) -> dict[str, np.ndarray]:
    missing = [name for name in names if name not in arrays]
    if missing:
        raise RequestError(f"has no {', '.join(missing)}; it has {', '.join(arrays) or 'nothing'}")
    for name in names:
        if arrays[name].dtype.kind not in ("U" if name == "joint_names" else "fiu"):
            raise RequestError(f"{name} is of type {arrays[name].dtype}")
    return arrays


def _fps(array: np.ndarray) -> float:
    if array.size != 1:
        raise RequestError(f"fps has shape {array.shape}; it must be one number")
    return float(array.reshape(()))


def _names(array: np.ndarray, field: str) -> tuple[str, ...]:
    if array.dtype.kind != "U" or array.ndim != 1:
        raise RequestError(f"{field} must be a list of names")
    return tuple(map(str, array))


def _read_mjlab(arrays: dict[str, np.ndarray], skeleton: Skeleton) -> Motion:
    positions, quaternions, joint_pos = arrays["body_pos_w"], arrays["body_quat_w"], arrays["joint_pos"]
    num_joints, num_bodies = len(skeleton.joints), len(skeleton.bodies)
    if positions.ndim != 3 or positions.shape[1:] != (num_bodies, 3) or quaternions.shape[1:] != (num_bodies, 4):
        shapes = f"{positions.shape} and {quaternions.shape}"
        raise RequestError(f"body_pos_w and body_quat_w have shapes {shapes}, and the robot has {num_bodies} bodies")
    if joint_pos.ndim == 2 and joint_pos.shape[1] == 7 + num_joints:  # some programs put the free joint before
        joint_pos = joint_pos[:, 7:]
    if joint_pos.shape != (len(positions), num_joints):
        raise RequestError(f"joint_pos has shape {joint_pos.shape}, and the robot has {num_joints} joints")
    motion = make_motion(_fps(arrays["fps"]), positions[:, 0], quaternions[:, 0], joint_pos, skeleton.joints)
    _check_bodies(np.asarray(positions, dtype=np.float64), motion, skeleton)
    return motion


def _check_bodies(positions: np.ndarray, motion: Motion, skeleton: Skeleton) -> None:
    """Compare the bodies of a file with where the joints of the robot put them."""
    ours = skeleton.body_states(motion).positions.numpy()
    if not np.isfinite(positions).all():
        raise RequestError("body_pos_w is not finite")
    distances = np.linalg.norm(positions - ours, axis=2).max(axis=0)
    worst = int(distances.argmax())
    if distances[worst] <= _NEAR_M:
        return
    apart = np.linalg.norm(positions[:, worst, None] - ours, axis=2).max(axis=0)
    hint = "it is of another robot, or its bodies or joints are in the order of another simulator"
    if apart.min() <= _NEAR_M:
        hint = f"it is where {skeleton.bodies[int(apart.argmin())]} should be, so its bodies are in another order"
    raise RequestError(
        f"body {worst} ({skeleton.bodies[worst]}) is {distances[worst]:.2f} m from where the joints put it; {hint}"
    )
