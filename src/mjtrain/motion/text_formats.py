"""Motions as text: Unitree's CSV, and JSON as DeepMimic's successors write it."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from mjtrain.deployment import rotations
from mjtrain.motion.motion import Motion, make_motion
from mjtrain.motion.skeleton import Skeleton
from mjtrain.runtime.errors import RequestError

MAX_MIB = 64
"""A file that is larger is refused."""

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


def read_csv(path: Path, skeleton: Skeleton | None, fps: float | None) -> Motion:
    """Read Unitree's convention: x, y, z, qx, qy, qz, qw and the joints, a row per frame, without a header.

    An OSError of the file passes through.
    """
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


def read_json(path: Path, skeleton: Skeleton | None) -> Motion:
    """Read DeepMimic's humanoid (44 numbers per frame), or root and joints of a robot (motion_imitation).

    The humanoid's ball joints become three angles each, named as those of the Unitree G1: hips and shoulders pitch,
    roll and yaw; waist yaw, roll and pitch. Positions stay those of the original body. An
    OSError of the file passes through.
    """
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
    if path.stat().st_size > MAX_MIB << 20:
        raise RequestError(f"has {path.stat().st_size >> 20} MiB; at most {MAX_MIB} are read")
    try:
        return path.read_text()
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
        raise RequestError(
            f"has a gap in time: frame {frame} lasts {durations.max():g} s, others {durations.min():g} s"
        )
    return float(1 / durations.mean())


def _read_robot(table: np.ndarray, fps: float, skeleton: Skeleton | None) -> Motion:
    if skeleton is None:
        raise RequestError("has no names of joints; give --task or --robot")
    wanted = 7 + len(skeleton.joints)
    if table.shape[1] != wanted:
        raise RequestError(f"has {table.shape[1]} numbers per frame; for this robot it must be {wanted}")
    return make_motion(fps, table[:, :3], table[:, [6, 3, 4, 5]], table[:, 7:], skeleton.joints)


def _read_humanoid(table: np.ndarray) -> Motion:
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
