"""Cameras that the environment renders, for policies that see."""

from dataclasses import dataclass, field
from typing import Literal

StreamName = Literal["rgb", "depth", "segmentation"]
"""What a camera can deliver."""


@dataclass(frozen=True, kw_only=True)
class CameraConfig:
    """A camera of the robot's scene, rendered in every world."""

    camera: str = ""
    """Camera of the MJCF file. Default: the one with the name of this entry."""

    width: int = 32
    """Columns of the image, in pixels."""

    height: int = 32
    """Rows of the image, in pixels."""

    streams: tuple[StreamName, ...] = ("rgb",)
    """What is rendered: rgb (colours), depth (distance along the optical axis), segmentation (index of the class)."""

    interval: int = 1
    """Env steps between frames; an episode begins with a new one."""

    near_m: float = 0.01
    """Depths below this read as this, in m."""

    far_m: float = 10.0
    """Depths beyond this, and rays that hit nothing, read as this, in m."""

    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Segmentation: regular expressions over geoms and bodies by class; a body stands for its own geoms. A geom is of
    the first class that matches it; what none matches is background."""

    shadows: bool = False
    """Lights that cast shadows do so. It costs a second ray per light and pixel."""

    geom_groups: tuple[int, ...] = (0, 1, 2)
    """Groups of geoms that the camera sees."""
