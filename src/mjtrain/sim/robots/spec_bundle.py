"""A robot that a function builds, as files: its MJCF written out, with meshes and images beside it.

Also whether a copy of a robot is the same model.
"""

import tempfile
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from mjtrain.config import RobotConfig
from mjtrain.sim.robots.model import open_robot
from mjtrain.sim.robots.robot_bundle import RobotBundleError, bundle_robot, find_file_attributes, list_differences

_TOLERANCE = 1e-4
"""Numbers that MuJoCo has written have about six digits."""


def bundle_built_robot(robot: RobotConfig) -> dict[str, bytes]:
    """Collect the files of a robot that a function builds, as `bundle_robot` does for one in a file.

    Raises:
        RobotBundleError: A file that the robot needs cannot be found.
    """
    spec = open_robot(robot)
    try:
        spec.compile()
        root = ET.fromstring(spec.to_xml())
    except ValueError as error:
        raise RobotBundleError(f"{robot.label} cannot be written as MJCF ({' '.join(str(error).split())})") from error
    folders = {"": "", "meshdir": spec.compiler.meshdir, "texturedir": spec.compiler.texturedir}
    for compiler in root.iter("compiler"):
        for setting in ("meshdir", "texturedir", "assetdir"):
            compiler.attrib.pop(setting, None)
    with tempfile.TemporaryDirectory() as folder:
        for number, (element, attribute, kind) in enumerate(find_file_attributes(root)):
            name = element.attrib[attribute]
            path = Path(folder, str(number), Path(name).name)
            path.parent.mkdir()
            path.write_bytes(_read_asset(spec, folders[kind], name, robot))
            element.set(attribute, str(path))
        main = Path(folder, robot.file_name)
        main.write_bytes(ET.tostring(root, encoding="utf-8"))
        return bundle_robot(main)


def _read_asset(spec: Any, folder: str, name: str, robot: RobotConfig) -> bytes:
    for key in (name, f"{folder}/{name}", Path(name).name):
        if key in spec.assets:
            content = spec.assets[key]
            return content if isinstance(content, bytes) else content.encode()
    for path in (Path(spec.modelfiledir, folder, name), Path(folder, name), Path(name)):
        if path.is_file():
            return path.read_bytes()
    raise RobotBundleError(f"{name}, a file that {robot.label} uses, is not in the assets of its MjSpec")


def list_copy_differences(robot: RobotConfig, copy: Path) -> list[str]:
    """Compile a robot and its copy, and return the fields that differ, see `list_differences`.

    Numbers of a robot in a file are compared bit by bit, and those of one that a function builds to `_TOLERANCE`.

    Raises:
        ValueError: One of them is not a valid model.
    """
    models = (open_robot(source).compile() for source in (robot, RobotConfig(file=str(copy))))
    with warnings.catch_warnings(category=UserWarning, action="ignore"):  # said where the robot is checked
        return list_differences(*models, tolerance=0.0 if robot.file else _TOLERANCE)
