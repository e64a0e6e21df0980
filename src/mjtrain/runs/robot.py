"""The copy of the robot in a run directory, which makes the run independent of where it was trained.

The copy is the robot as it was found. What its config adds is recorded, and added again whenever the copy is loaded.
"""

import hashlib
import re
from dataclasses import replace
from pathlib import Path

from mjtrain.config import RobotConfig
from mjtrain.runs.run_dir import read_params
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import find_file_problem, write_whole
from mjtrain.sim.robots.robot_bundle import RobotBundleError, bundle_built_robot, bundle_robot, list_copy_differences

ROBOT_DIR = "robot"
"""Folder in a run directory for the robot: its MJCF file, includes merged, and the files that it refers to."""


def check_robot_file(robot: RobotConfig | None) -> None:
    """Raise a RequestError if the robot's file is missing; an environment that someone else wrote has None."""
    if robot is None:
        return
    if robot.spec is None and not robot.file:
        raise RequestError("--env.robot: no robot is given; give an MJCF file")
    if robot.file.lstrip().startswith("<"):  # which may be too long for the name of a file
        raise RequestError("--env.robot: MJCF text is given; give a file, or a function that returns an mujoco.MjSpec")
    if robot.file and (problem := find_file_problem(Path(robot.file))):
        raise RequestError(f"--env.robot {robot.file}: {problem}")


def save_robot(run_dir: Path, robot: RobotConfig) -> tuple[RobotConfig, list[str]]:
    """Copy a robot into a run. What already exists stays: another robot of the same name gets another name.

    Returns:
        What params/env.yaml records: the same with the copy as its file, relative to the run directory; and a line if
        there is no copy, in which case the record has the absolute path of the file itself, or the function.
    """
    try:
        files = _bundle(robot)
    except RobotBundleError as error:
        line = f"the run keeps no copy of the robot, so it needs {robot.label} later: {error}"
        return with_absolute_file(robot), [line]
    (_, main), *assets = files.items()
    folder = run_dir / ROBOT_DIR
    name = _choose_name(folder, Path(robot.file_name), main)
    for file, content in [*assets, (name, main)]:
        path = folder / file
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content)
    return replace(robot, file=f"{ROBOT_DIR}/{name}"), []


def digest_robot(robot: RobotConfig) -> str:
    """Return the SHA-256 of a robot's file and what it refers to; empty for a function, and if a file is missing."""
    try:
        main, *_ = _bundle(robot).values() if robot.file else (b"",)
    except RobotBundleError:
        return ""
    return hashlib.sha256(main).hexdigest() if main else ""  # it has the others' digests in their names


def with_absolute_file(robot: RobotConfig) -> RobotConfig:
    """Return a robot whose file has an absolute path; one that a function builds is returned as it is."""
    return replace(robot, file=str(Path(robot.file).absolute())) if robot.file else robot


def _bundle(robot: RobotConfig) -> dict[str, bytes]:
    if robot.file:
        return bundle_robot(Path(robot.file))
    return bundle_built_robot(robot)


def _choose_name(folder: Path, robot: Path, content: bytes) -> str:
    """Return the first of robot.xml, robot-2.xml, … that is free or has this content."""
    name, number = robot.name, 1
    while (folder / name).is_file() and (folder / name).read_bytes() != content:
        number += 1
        name = f"{robot.stem}-{number}{robot.suffix}"
    return name


def find_robot(run_dir: Path, recorded: RobotConfig) -> RobotConfig | None:
    """Return the robot that a run recorded with the absolute path of its file, None if that is not on this machine.

    Args:
        recorded: What its params/env.yaml says. The file is relative to the run directory, or the absolute path of
            a robot that could not be copied, or empty for a function.
    """
    if not recorded.file:
        return recorded if recorded.spec is not None else None
    path = find_robot_file(run_dir, recorded.file)
    return None if path is None else replace(recorded, file=str(path))


def find_robot_file(run_dir: Path, recorded: str) -> Path | None:
    """Return the absolute path of a recorded robot's file, None if it is not on this machine."""
    path = run_dir.absolute() / recorded
    return path if path.is_file() else None


def choose_robot(run_dir: Path, robot: RobotConfig | None) -> tuple[RobotConfig | None, list[str]]:
    """Choose the robot of a run that is about to be trained: as asked for, or with the run's own copy of its file."""
    file = "" if robot is None else robot.file
    if robot is None or not file or not find_file_problem(Path(file)):
        return robot, []
    copy = find_robot_file(run_dir, _recorded_file(run_dir) or ROBOT_DIR)
    if copy is None:
        raise RequestError(f"--env.robot {file}: no such file, and {run_dir} has no copy of the robot")
    stem, suffix = re.escape(Path(file).stem), re.escape(Path(file).suffix)
    if not re.fullmatch(rf"{stem}(-\d+)?{suffix}", copy.name):  # more likely a typo than a deleted file
        raise RequestError(f"--env.robot {file}: no such file; the copy in the run is {copy}")
    return replace(robot, file=str(copy)), [f"--env.robot {file}: no such file; using the copy in the run, {copy}"]


def _recorded_file(run_dir: Path) -> str:
    robot = read_params(run_dir, "env").get("robot")
    file = robot.get("file") if isinstance(robot, dict) else None
    return file if isinstance(file, str) else ""


def list_robot_changes(run_dir: Path, robot: RobotConfig | None) -> list[str]:
    """Return a line if a robot's files are not those that a run recorded, by content, wherever they are.

    What its config adds to it is left to `run_dir.list_changes`.
    """
    recorded = _recorded_file(run_dir)
    if not recorded or robot is None:
        return []
    copy = find_robot_file(run_dir, recorded)
    if copy is None:
        return [] if recorded == robot.file else [f"env.robot: {recorded} -> {robot.label}"]
    try:
        if list(bundle_robot(copy).values()) == list(_bundle(robot).values()):
            return []
    except RobotBundleError:
        if robot.file and copy == Path(robot.file).absolute():
            return []
    keeps = f"--env.robot {copy} keeps the recorded one"
    return [f"env.robot: {recorded} -> {robot.label}, whose content differs ({keeps})"]


def record_robot(run_dir: Path, robot: RobotConfig) -> tuple[RobotConfig, list[str]]:
    """Copy a robot into a run and compile the copy; returns as `save_robot` does.

    A copy that is not the same model is deleted, and the original recorded instead.
    """
    recorded, notices = save_robot(run_dir, robot)
    copy = find_robot_file(run_dir, recorded.file) if recorded.file else None
    if copy is None or (robot.file and copy == Path(robot.file).absolute()):
        return recorded, notices
    problem = _compare_models(robot, copy)
    if problem is None:
        return recorded, notices
    copy.unlink()
    line = f"the run's copy of the robot, {copy}, cannot be used: {problem}. The run needs {robot.label} later"
    return with_absolute_file(robot), [line]


def _compare_models(robot: RobotConfig, copy: Path) -> str | None:
    """Return why a copy is not the same model; None if it is."""
    try:
        differing = list_copy_differences(robot, copy)
    except ValueError as error:
        return f"it does not compile ({' '.join(str(error).split())})"
    return f"it compiles to another model ({', '.join(differing[:3])} differ)" if differing else None
