"""Flags that tyro alone cannot read: short, repeated and joined ones, and parts and cameras under new names."""

import ast
import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar, get_args, get_type_hints

from mjtrain.config import AnyEnvConfig, CameraConfig, EnvConfig, RobotConfig

PartT = TypeVar("PartT")
EnvT = TypeVar("EnvT", bound=AnyEnvConfig)

SHORT, LONG = "--env.robot", "--env.robot.file"


def expand_robot_file(args: Sequence[str]) -> list[str]:
    """Write `--env.robot FILE` as `--env.robot.file FILE`."""
    return [re.sub(rf"^{re.escape(SHORT)}(?==|$)", LONG, arg) for arg in args]


def expand_agent_flags(args: Sequence[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Split what an agent of a W&B sweep has joined: several flags with one value, and several values of a flag.

    `--agent.actor.hidden-dims,agent.critic.hidden-dims=64 64` becomes two flags with two values each. The agent makes
    such words of the configuration that `sweep --wandb` writes, and sets WANDB_SWEEP_ID; without it, all stays.
    """
    if "WANDB_SWEEP_ID" not in environ:
        return list(args)
    expanded = []
    for arg in args:
        names, equals, value = arg.partition("=")
        if not arg.startswith("--") or ("," not in names and " " not in value):
            expanded.append(arg)
            continue
        for name in names.removeprefix("--").split(","):
            expanded += [f"--{name}", *(value.split() if equals else ())]
    return expanded


def join_repeated(args: Sequence[str], flag: str) -> list[str]:
    """Write a flag that is given several times, with one or more values each, once with all of them."""
    others: list[str] = []
    values: list[str] = []
    taking = False
    for arg in args:
        name, equals, value = arg.partition("=")
        is_flag = arg.startswith("-")
        if is_flag:
            taking = name.replace("_", "-") == flag
            if taking and equals:
                values.append(value)
        elif taking:
            values.append(arg)
        if not taking:
            others.append(arg)
    return [*others, flag, *values] if values else list(args)


def with_env(options: type[Any], env: AnyEnvConfig) -> Any:
    """Return a dataclass of options whose field `env` has the type of an environment that someone else wrote."""
    if isinstance(env, EnvConfig):
        return options
    return dataclasses.make_dataclass(
        options.__name__, [("env", type(env))], bases=(options,), frozen=True, kw_only=True
    )


def add_named_parts(env: EnvT, args: Sequence[str]) -> EnvT:
    """Add an empty part of the robot, camera or class for each name that flags mention and that is missing.

    So `--env.robot.sensors.imu.type gyro --env.robot.sensors.imu.object trunk` adds a sensor named imu,
    `--env.cameras.wrist.width 64` a camera named wrist, and `--env.cameras.wrist.classes.cube box` a class named cube.
    An environment that someone else wrote gets keyword arguments: `--env.kwargs.forward-reward-weight 2.0`.
    """
    if not isinstance(env, EnvConfig):
        return dataclasses.replace(env, kwargs=_add_keywords(env.kwargs, args))
    hints = {name: get_args(kind) for name, kind in get_type_hints(RobotConfig).items()}
    kinds: dict[str, Any] = {
        name: kind[1] for name, kind in hints.items() if len(kind) == 2 and dataclasses.is_dataclass(kind[1])
    }
    robot = {
        field: _add_names(getattr(env.robot, field), rf"--env\.robot\.{field}\.([^.=]+)\.", kind, args)
        for field, kind in kinds.items()
    }
    cameras = _add_names(env.cameras, r"--env\.cameras\.([^.=]+)\.", CameraConfig, args)
    for name, camera in cameras.items():
        either = re.sub("[-_]", "[-_]", re.escape(name).replace(r"\-", "-"))
        classes = _add_names(camera.classes, rf"--env\.cameras\.{either}\.classes\.([^.=]+)(?:=|$)", tuple, args)
        cameras[name] = dataclasses.replace(camera, classes=classes)
    return dataclasses.replace(env, robot=dataclasses.replace(env.robot, **robot), cameras=cameras)


def _add_keywords(kwargs: dict[str, Any], args: Sequence[str]) -> dict[str, Any]:
    """Return keyword arguments and those that flags name, of the type of their value: a number, a truth or a word."""
    found = dict(kwargs)
    for arg, following in zip_longest(args, args[1:], fillvalue=""):
        match = re.match(r"--env\.kwargs\.([^=]+)(?:=(.*))?$", arg)
        if match and match[1].replace("-", "_") not in found:
            found[match[1].replace("-", "_")] = _read_word(following if match[2] is None else match[2])
    return found


def _read_word(word: str) -> bool | float | int | str:
    try:
        value = ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word
    return value if isinstance(value, bool | float | int) else word


def _add_names(
    parts: dict[str, PartT], pattern: str, make: Callable[[], PartT], args: Sequence[str]
) -> dict[str, PartT]:
    """Return the parts and a new one for each name that a flag has where the pattern has its group."""
    found = dict(parts)
    for arg in args:
        match = re.match(pattern, arg)
        if match and match[1].replace("-", "_") not in {part.replace("-", "_") for part in found}:  # tyro takes either
            found[match[1]] = make()
    return found
