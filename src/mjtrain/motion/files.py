"""Files of motions, whatever their format."""

import io
from pathlib import Path

from mjtrain.motion.motion import Motion, check_motion
from mjtrain.motion.npz import read_npz, write_mjlab, write_npz
from mjtrain.motion.skeleton import Skeleton
from mjtrain.motion.text_formats import read_csv, read_json
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import check_writable, write_out

SUFFIXES = (".npz", ".csv", ".json", ".txt")
"""How names of files of motions end."""


def read_motion(path: str | Path, skeleton: Skeleton | None = None, *, fps: float | None = None) -> Motion:
    """Read a motion from NPZ (ours or mjlab's), CSV (Unitree's) or JSON (DeepMimic's).

    Args:
        skeleton: The robot that it must be of. Only our NPZ and DeepMimic's humanoid can be read without.
        fps: Frames per second of a CSV file, which does not say.

    Raises:
        RequestError: The file does not exist, it is not a motion, or it is one of another robot. The message begins
            with the file.
    """
    path = Path(path)
    try:
        if path.suffix == ".npz":
            motion = read_npz(path, skeleton)
        elif path.suffix == ".csv":
            motion = read_csv(path, skeleton, fps)
        elif path.suffix in (".json", ".txt"):
            motion = read_json(path, skeleton)
        elif not path.exists():
            raise FileNotFoundError
        else:
            raise RequestError("is not a motion; give a file that ends in .npz, .csv, .json or .txt")
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
    """Write a motion as NPZ: ours, or mjlab's, which needs the robot."""
    path = Path(path)
    check_out(path)
    try:
        check_motion(motion)
    except RequestError as error:
        raise RequestError(f"{path}: not written, because the motion would not be valid: {error}") from error
    content = io.BytesIO()
    if not mjlab:
        write_npz(content, motion)
    elif skeleton is not None:
        write_mjlab(content, motion, skeleton)
    else:
        raise RequestError(f"{path}: mjlab's format has the poses of all bodies; give --task or --robot")
    try:
        write_out(path, content.getvalue())
    except OSError as error:
        raise RequestError(f"{path}: cannot be written ({error.strerror or error})") from error
