"""The robot: an MJCF file, or a function that builds it, and what a task adds to it."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from mjtrain.config.limits import MORE_THAN_0
from mjtrain.config.robot_parts import (
    ActuatorConfig,
    GeomConfig,
    KeyframeConfig,
    LightConfig,
    MirrorConfig,
    MountedCameraConfig,
    NamesConfig,
    OptionConfig,
    SensorConfig,
    SiteConfig,
)


@dataclass(frozen=True, kw_only=True)
class RobotConfig:
    """A robot with its scene, and changes to it that leave its file untouched.

    They are made in the order of the fields: names first, lights last.
    """

    file: str = ""
    """MJCF file. In Python also a pathlib.Path, a module with MJCF_PATH (as in robot_descriptions), or a function that
    returns an mujoco.MjSpec, which becomes `spec`."""

    spec: Callable[..., Any] | None = None
    """spec() -> mujoco.MjSpec: builds the robot where there is no file."""

    timestep: Annotated[float | None, MORE_THAN_0] = None
    """Physics step, in s. None: as in the file."""

    names: NamesConfig = field(default_factory=NamesConfig)
    """New names for parts of the robot."""

    options: OptionConfig = field(default_factory=OptionConfig)
    """Options of the simulation."""

    geoms: dict[str, GeomConfig] = field(default_factory=dict)
    """Changes of geoms, in this order: collisions, friction, groups."""

    self_collision: bool = True
    """False: parts of the robot do not collide with each other, only with the rest of the scene."""

    sites: dict[str, SiteConfig] = field(default_factory=dict)
    """Sites that are added, by name."""

    actuators: dict[str, ActuatorConfig] = field(default_factory=dict)
    """Actuators that replace those of the file, in groups. Actuators of the file that have no name are named after
    their joint, tendon, site or body."""

    sensors: dict[str, SensorConfig] = field(default_factory=dict)
    """Sensors that are added, by name; one of the same name in the file is replaced."""

    keyframes: dict[str, KeyframeConfig] = field(default_factory=dict)
    """Poses that are added, by name; one of the same name in the file is replaced."""

    keyframe: str = ""
    """Name of the keyframe that is the default pose. Default: home if there is one, else the reference pose."""

    locked_joints: tuple[str, ...] = ()
    """Regular expressions over slides and hinges that stay where the default pose has them. They are no joints of the
    model then, and their actuators and sensors are left out."""

    cameras: dict[str, MountedCameraConfig] = field(default_factory=dict)
    """Cameras that are added, by name."""

    lights: dict[str, LightConfig] = field(default_factory=dict)
    """Lights that are added, by name."""

    mirror: MirrorConfig = field(default_factory=MirrorConfig)
    """Which parts are mirror images of each other. It changes nothing of the robot."""

    def __post_init__(self) -> None:
        given: Any = self.file
        if isinstance(given, str):
            return
        if isinstance(given, os.PathLike) or hasattr(given, "MJCF_PATH"):
            object.__setattr__(self, "file", str(getattr(given, "MJCF_PATH", given)))
        elif callable(given):
            object.__setattr__(self, "file", "")
            object.__setattr__(self, "spec", given)
        else:
            raise TypeError(
                f"the robot is {given!r}; give a path, a RobotConfig, a module with MJCF_PATH or a function that "
                "returns an mujoco.MjSpec"
            )

    @property
    def label(self) -> str:
        """What messages call it: the file, or module:function."""
        if self.file or self.spec is None:
            return self.file
        return f"{self.spec.__module__}:{self.spec.__qualname__}"

    @property
    def file_name(self) -> str:
        """Name of its MJCF file without folders, or the one that a copy of a built robot has."""
        return Path(self.file).name if self.file or self.spec is None else f"{self.spec.__name__}.xml"
