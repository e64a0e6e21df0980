"""Flags of the robot that tyro alone cannot read: the short form of its file, and parts under new names."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, get_args, get_type_hints

from mjtrain.config import RobotConfig

SHORT, LONG = "--env.robot", "--env.robot.file"


def expand_robot_file(args: Sequence[str]) -> list[str]:
    """Write `--env.robot FILE` as `--env.robot.file FILE`."""
    return [re.sub(rf"^{re.escape(SHORT)}(?==|$)", LONG, arg) for arg in args]


def add_named_parts(robot: RobotConfig, args: Sequence[str]) -> RobotConfig:
    """Give the robot an empty sensor, site and so on for each name that flags mention and that it lacks.

    So `--env.robot.sensors.imu.type gyro --env.robot.sensors.imu.object trunk` adds a sensor named imu.
    """
    kinds = {name: get_args(kind)[1] for name, kind in get_type_hints(RobotConfig).items() if _holds_parts(kind)}
    changes: dict[str, dict[str, Any]] = {}
    for arg in args:
        found = re.match(rf"{re.escape(SHORT)}\.({'|'.join(kinds)})\.([^.=]+)\.", arg)
        if found is None:
            continue
        field, name = found.groups()
        parts = changes.setdefault(field, dict(getattr(robot, field)))
        if name.replace("-", "_") not in {part.replace("-", "_") for part in parts}:  # tyro takes either
            parts[name] = kinds[field]()
    return dataclasses.replace(robot, **changes)


def _holds_parts(kind: Any) -> bool:
    arguments = get_args(kind)
    return len(arguments) == 2 and dataclasses.is_dataclass(arguments[1])
