"""The copy of the robot in a run directory, which makes the run independent of where it was trained."""

import re
from pathlib import Path

from mjtrain.engines.robot_bundle import RobotBundleError, bundle_robot, differing_fields
from mjtrain.errors import RequestError
from mjtrain.runs.run_dir import read_params

ROBOT_DIR = "robot"
"""Folder in a run directory for the robot: its MJCF file, includes merged, and the files that it refers to."""


def save_robot(run_dir: Path, robot: str) -> tuple[str, list[str]]:
    """Copy a robot into a run. What is there already stays: another robot of the same name gets another name.

    Args:
        run_dir: The run.
        robot: MJCF file.

    Returns:
        What params/env.yaml records: the copy, relative to the run directory; and a line if there is no copy, in which
        case the record is the absolute path of the file itself.
    """
    try:
        files = bundle_robot(Path(robot))
    except RobotBundleError as error:
        return str(Path(robot).absolute()), [f"the run keeps no copy of the robot, so it needs {robot} later: {error}"]
    (_, main), *assets = files.items()
    folder = run_dir / ROBOT_DIR
    name = _choose_name(folder, Path(robot), main)
    for file, content in [*assets, (name, main)]:
        path = folder / file
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.partial")
            partial.write_bytes(content)
            partial.replace(path)
    return f"{ROBOT_DIR}/{name}", []


def _choose_name(folder: Path, robot: Path, content: bytes) -> str:
    """Return the first of robot.xml, robot-2.xml, … that is free or has this content."""
    name, number = robot.name, 1
    while (folder / name).is_file() and (folder / name).read_bytes() != content:
        number += 1
        name = f"{robot.stem}-{number}{robot.suffix}"
    return name


def find_robot(run_dir: Path, recorded: str) -> Path | None:
    """Return the absolute path of the robot that a run recorded, None if it is not on this machine.

    Args:
        run_dir: The run.
        recorded: What its params/env.yaml says: relative to the run directory, or an absolute path (as runs of earlier
            versions, and of robots that could not be copied, recorded it).
    """
    path = run_dir.absolute() / recorded
    return path if path.is_file() else None


def choose_robot(run_dir: Path, robot: str) -> tuple[str, list[str]]:
    """Choose the robot of a run that is about to be trained: the file that was asked for, or the run's own copy of it.

    Returns:
        Its path, and a line if it is the copy.

    Raises:
        RequestError: The file is missing, and the run has no copy of it.
    """
    if Path(robot).is_file():
        return robot, []
    copy = find_robot(run_dir, read_params(run_dir, "env").get("robot", ROBOT_DIR))
    if copy is None:
        raise RequestError(f"--env.robot {robot}: no such file, and {run_dir} has no copy of the robot")
    if not _is_copy_of(copy.name, Path(robot)):  # more likely a typing error than a file that is gone
        raise RequestError(f"--env.robot {robot}: no such file; the copy in the run is {copy}")
    return str(copy), [f"--env.robot {robot}: no such file; using the copy in the run, {copy}"]


def _is_copy_of(name: str, robot: Path) -> bool:
    """Tell whether `save_robot` may have given this name to the copy of a robot."""
    return re.fullmatch(rf"{re.escape(robot.stem)}(-\d+)?{re.escape(robot.suffix)}", name) is not None


def list_robot_changes(run_dir: Path, robot: str) -> list[str]:
    """Compare a robot with the one that a run recorded, by content.

    Returns:
        A line if it is another one. The same robot at another path is no change.
    """
    recorded = read_params(run_dir, "env").get("robot")
    if recorded is None:
        return []
    copy = find_robot(run_dir, recorded)
    if copy is None:
        return [] if recorded == robot else [f"env.robot: {recorded} -> {robot}"]
    try:
        if _content(copy) == _content(Path(robot)):
            return []
    except RobotBundleError:
        if copy == Path(robot).absolute():
            return []
    return [f"env.robot: {recorded} -> {robot}, whose content differs (--env.robot {copy} keeps the recorded one)"]


def _content(robot: Path) -> list[bytes]:
    return list(bundle_robot(robot).values())


def record_robot(run_dir: Path, robot: str) -> tuple[str, list[str]]:
    """Copy a robot into a run and compile the copy; returns as `save_robot` does.

    A copy that is not the same model is deleted, and the original recorded instead.
    """
    recorded, notices = save_robot(run_dir, robot)
    copy = find_robot(run_dir, recorded)
    if copy is None or copy == Path(robot).absolute():
        return recorded, notices
    problem = _compare_models(Path(robot), copy)
    if problem is None:
        return recorded, notices
    copy.unlink()
    line = f"the run's copy of the robot, {copy}, cannot be used: {problem}. The run needs {robot} later"
    return str(Path(robot).absolute()), [line]


def _compare_models(robot: Path, copy: Path) -> str | None:
    """Return why a copy is not the same model; None if it is."""
    try:
        differing = differing_fields(robot, copy)
    except ValueError as error:
        return f"it does not compile ({' '.join(str(error).split())})"
    return f"it compiles to another model ({', '.join(differing[:3])} differ)" if differing else None
