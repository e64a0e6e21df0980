"""Files of motions: mjtrain's NPZ and mjlab's, Unitree's CSV, and JSON as DeepMimic's successors write it.

mjtrain's NPZ holds what a motion is: fps, root_pos, root_quat, joint_pos and joint_names, and contacts with
contact_bodies if they are known. mjlab's, which BeyondMimic's is too, holds fps, joint_pos, joint_vel and, for all
bodies, body_pos_w, body_quat_w, body_lin_vel_w and body_ang_vel_w, without names.
"""

import csv
import io
import json
import lzma
import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from mjtrain.deployment import rotations
from mjtrain.motion.motion import Motion, make_motion
from mjtrain.motion.skeleton import Skeleton
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import check_writable, write_out

SUFFIXES = (".npz", ".csv", ".json", ".txt")
"""How names of files of motions end."""

MAX_MIB = 512
"""An NPZ file that unpacks to more is refused."""

DAMAGES = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, MemoryError)
"""Errors of an NPZ file that is damaged or encrypted. A damaged header may ask for more memory than there is."""

_MJLAB = ("fps", "joint_pos", "joint_vel", "body_pos_w", "body_quat_w", "body_lin_vel_w", "body_ang_vel_w")
"""Arrays of mjlab's files."""

_OURS = ("fps", "root_pos", "root_quat", "joint_pos", "joint_names")
_NEAR_M = 0.02
"""How far the position of a body in mjlab's file may be from what the joints say."""

_MAX_TEXT_MIB = 64
"""A text file that is larger is refused."""

_HUMANOID = (
    ("chest", 4),
    ("neck", 4),
    ("right_hip", 4),
    ("right_knee", 1),
    ("right_ankle", 4),
    ("right_shoulder", 4),
    ("right_elbow", 1),
    ("left_hip", 4),
    ("left_knee", 1),
    ("left_ankle", 4),
    ("left_shoulder", 4),
    ("left_elbow", 1),
)
"""Parts of a frame of DeepMimic's humanoid after the root, with their widths (Peng et al. 2018)."""


def read_motion(path: str | Path, skeleton: Skeleton | None = None, *, fps: float | None = None) -> Motion:
    """Read a motion from NPZ (mjtrain's or mjlab's), CSV (Unitree's) or JSON (DeepMimic's).

    Args:
        skeleton: The robot that it must be of. Only mjtrain's NPZ and DeepMimic's humanoid can be read without.
        fps: Frames per second of a CSV file, which does not say.

    Raises:
        RequestError: The file does not exist, it is not a motion, or it is one of another robot. The message begins
            with the file.
    """
    path = Path(path)
    try:
        if path.suffix == ".npz":
            motion = _read_npz(path, skeleton)
        elif path.suffix == ".csv":
            motion = _read_csv(path, skeleton, fps)
        elif path.suffix in (".json", ".txt"):
            motion = _read_json(path, skeleton)
        elif not path.exists():
            raise FileNotFoundError
        else:
            raise RequestError("is not a motion; give a file that ends in .npz, .csv, .json or .txt")
        if fps is not None and path.suffix != ".csv":
            raise RequestError(f"says its frame rate, so --input-fps {fps:g} has no effect; leave it out")
        if skeleton is not None:
            skeleton.check_joints(motion)
    except FileNotFoundError:
        raise RequestError(f"{path}: no such file") from None
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error.strerror or error})") from error
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error
    return motion


def check_out(path: str | Path) -> None:
    """Check, before any work, that a motion can be written; raises a RequestError that begins with the file."""
    if Path(path).suffix != ".npz":
        raise RequestError(f"{path}: motions are written as NPZ; give a name that ends in .npz")
    check_writable("", Path(path))


def write_motion(path: str | Path, motion: Motion, skeleton: Skeleton | None = None, *, mjlab: bool = False) -> None:
    """Write a motion as NPZ: mjtrain's, or mjlab's, which needs the robot."""
    path = Path(path)
    check_out(path)
    try:
        make_motion(**vars(motion))  # checks it again, because edits may have changed it
    except RequestError as error:
        raise RequestError(f"{path}: not written, because the motion would not be valid: {error}") from error
    content = io.BytesIO()
    if not mjlab:
        _write_npz(content, motion)
    elif skeleton is not None:
        _write_mjlab(content, motion, skeleton)
    else:
        raise RequestError(f"{path}: mjlab's format has the poses of all bodies; give --task or --robot")
    try:
        write_out(path, content.getvalue())
    except OSError as error:
        raise RequestError(f"{path}: cannot be written ({error.strerror or error})") from error


def _read_npz(path: Path, skeleton: Skeleton | None) -> Motion:
    arrays = _load(path)
    if "root_pos" not in arrays and "body_pos_w" in arrays:
        if skeleton is None:
            raise RequestError("is in mjlab's format, which has no names of joints; give --task or --robot")
        return _read_mjlab(_require(arrays, _MJLAB), skeleton)
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


def _write_npz(file: IO[bytes], motion: Motion) -> None:
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


def _write_mjlab(file: IO[bytes], motion: Motion, skeleton: Skeleton) -> None:
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
    except DAMAGES as error:
        raise RequestError("is not an NPZ file") from error
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise RequestError("has pickled objects, which are never read; save numbers, and names as str") from error
        raise RequestError(f"cannot be read: {error}") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # NumPy returns the bytes of a member that is not an array
            raise RequestError(f"{name} is not an array")
    return arrays


def _require(arrays: dict[str, np.ndarray], names: tuple[str, ...]) -> dict[str, np.ndarray]:
    missing = [name for name in names if name not in arrays]
    if missing:
        raise RequestError(f"has no {', '.join(missing)}; it has {', '.join(arrays) or 'nothing'}")
    for name in names:
        if name != "joint_names" and arrays[name].dtype.kind not in "fiu":
            raise RequestError(f"{name} is of type {arrays[name].dtype}; give numbers")
    return arrays


def _fps(array: np.ndarray) -> float:
    if array.size != 1:
        raise RequestError(f"fps has shape {array.shape}; it must be one number")
    return float(array.reshape(()))


def _names(array: np.ndarray, field: str) -> tuple[str, ...]:
    if array.dtype.kind != "U" or array.ndim != 1:
        raise RequestError(f"{field} has shape {array.shape} and type {array.dtype}; give a list of names as str")
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
    root = skeleton.root_body - 1  # the world is not in the file
    motion = make_motion(_fps(arrays["fps"]), positions[:, root], quaternions[:, root], joint_pos, skeleton.joints)
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


def _read_csv(path: Path, skeleton: Skeleton | None, fps: float | None) -> Motion:
    """Read Unitree's convention: x, y, z, qx, qy, qz, qw and the joints, a row per frame, without a header."""
    if skeleton is None:
        raise RequestError("a CSV file has no names of joints; give --task or --robot")
    if fps is None:
        raise RequestError(
            "a CSV file has no frame rate; give --input-fps (Unitree's have 30), or to a task the NPZ that "
            "`mjtrain motion convert` makes of it"
        )
    width = 7 + len(skeleton.joints)
    rows = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            values = [float(cell) for cell in next(csv.reader([line]))]
        except (ValueError, csv.Error) as error:
            raise RequestError(f"line {number}: {error}") from error
        if len(values) != width:
            raise RequestError(
                f"line {number} has {len(values)} columns; for this robot it must be {width}: 7 of the root and "
                f"{len(skeleton.joints)} joints"
            )
        rows.append(values)
    table = np.array(rows, dtype=np.float64).reshape(-1, width)
    return make_motion(fps, table[:, :3], table[:, [6, 3, 4, 5]], table[:, 7:], skeleton.joints)


def _read_json(path: Path, skeleton: Skeleton | None) -> Motion:
    """Read DeepMimic's humanoid (44 numbers per frame), or root and joints of a robot (motion_imitation)."""
    try:
        content = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"is not valid JSON: {error}") from error
    frames = content.get("Frames") if isinstance(content, dict) else None
    try:
        table = np.array(frames, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError("Frames must be a list of lists of numbers of equal length") from error
    if table.ndim != 2 or not len(table):
        raise RequestError("has no Frames, a list of lists of numbers")
    if "FrameDuration" in content:
        return _read_robot(table, _rate(np.full(len(table), _number(content["FrameDuration"]))), skeleton)
    if table.shape[1] == 8 + sum(width for _, width in _HUMANOID):
        return _read_humanoid(table)
    raise RequestError(
        f"has {table.shape[1]} numbers per frame and no FrameDuration; DeepMimic's humanoid has 44, and other robots "
        "have FrameDuration with root and joints"
    )


def _text(path: Path) -> str:
    if path.stat().st_size > _MAX_TEXT_MIB << 20:
        raise RequestError(f"has {path.stat().st_size >> 20} MiB; at most {_MAX_TEXT_MIB} are read")
    try:
        return path.read_text(encoding="utf-8-sig")  # spreadsheets write a mark before the text
    except UnicodeDecodeError as error:
        raise RequestError("is not a text file") from error


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"FrameDuration is {value!r}; it must be a number")
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def _rate(durations: np.ndarray) -> float:
    """Return frames per second of frames of equal durations; that of the last one does not matter."""
    durations = durations[:-1] if len(durations) > 1 else durations
    if not (np.isfinite(durations).all() and (durations > 0).all()):
        raise RequestError("a frame has no positive duration")
    if durations.max() > 1.02 * durations.min():
        frame = int(durations.argmax())
        raise RequestError(f"has a gap: frame {frame} lasts {durations.max():g} s, others {durations.min():g} s")
    return float(1 / durations.mean())


def _read_robot(table: np.ndarray, fps: float, skeleton: Skeleton | None) -> Motion:
    if skeleton is None:
        raise RequestError("has no names of joints; give --task or --robot")
    wanted = 7 + len(skeleton.joints)
    if table.shape[1] != wanted:
        raise RequestError(f"has {table.shape[1]} numbers per frame; for this robot it must be {wanted}")
    return make_motion(fps, table[:, :3], table[:, [6, 3, 4, 5]], table[:, 7:], skeleton.joints)


def _read_humanoid(table: np.ndarray) -> Motion:
    """Make three angles of each ball joint, named as those of the Unitree G1; positions stay those of that body."""
    fps = _rate(table[:, 0])
    parts, column = {}, 8
    for name, width in _HUMANOID:
        parts[name] = table[:, column : column + width]
        column += width
    joints: dict[str, np.ndarray] = {}
    for side in ("left", "right"):
        for part in ("hip", "shoulder"):
            angles = _angles(_to_z_up(parts[f"{side}_{part}"]), "yxz")
            joints |= {f"{side}_{part}_{name}_joint": angles[k] for k, name in enumerate(("pitch", "roll", "yaw"))}
        ankle = _angles(_to_z_up(parts[f"{side}_ankle"]), "yxz")
        joints |= {f"{side}_ankle_pitch_joint": ankle[0], f"{side}_ankle_roll_joint": ankle[1]}
        joints[f"{side}_knee_joint"] = -parts[f"{side}_knee"][:, 0]
        joints[f"{side}_elbow_joint"] = np.pi / 2 - parts[f"{side}_elbow"][:, 0]
    chest = _angles(_to_z_up(parts["chest"]), "zxy")
    joints |= {f"waist_{name}_joint": chest[k] for k, name in enumerate(("yaw", "roll", "pitch"))}
    root = np.stack([table[:, 1], -table[:, 3], table[:, 2]], axis=1)
    return make_motion(fps, root, _to_z_up(table[:, 4:8]), np.stack(list(joints.values()), axis=1), tuple(joints))


def _to_z_up(quaternions: np.ndarray) -> np.ndarray:
    """Express rotations (w, x, y, z) in a frame with z up, where they are given in one with y up."""
    w, x, y, z = quaternions.T
    return np.stack([w, x, -z, y], axis=1)


def _angles(quaternions: np.ndarray, order: str) -> list[np.ndarray]:
    """Return the three angles of rotations, first about the first axis, each about an axis that has turned with it."""
    matrix = rotations.matrix((quaternions / np.linalg.norm(quaternions, axis=1, keepdims=True)).T)
    i, j, k = ("xyz".index(axis) for axis in order)
    sign = 1.0 if (i, j, k) in ((0, 1, 2), (1, 2, 0), (2, 0, 1)) else -1.0
    first = np.arctan2(-sign * matrix[j, k], matrix[k, k])
    second = np.arcsin(np.clip(sign * matrix[i, k], -1, 1))
    third = np.arctan2(-sign * matrix[i, j], matrix[i, i])
    return [np.unwrap(angle) for angle in (first, second, third)]
