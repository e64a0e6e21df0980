"""Cameras that the environment renders, for policies that see."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from mjtrain.config.limits import AT_LEAST_1, MORE_THAN_0, Range

StreamName = Literal["rgb", "depth", "segmentation"]
"""What a camera can deliver."""


@dataclass(frozen=True, kw_only=True)
class CameraConfig:
    """A camera of the robot's scene, rendered in every world."""

    camera: str = ""
    """Camera of the MJCF file. Default: the one with the name of this entry."""

    width: Annotated[int, AT_LEAST_1] = 32
    """Columns of the image, in pixels."""

    height: Annotated[int, AT_LEAST_1] = 32
    """Rows of the image, in pixels."""

    streams: tuple[StreamName, ...] = ("rgb",)
    """What is rendered: rgb (colours), depth (distance along the optical axis), segmentation (index of the class)."""

    interval: Annotated[int, AT_LEAST_1] = 1
    """Env steps between frames; an episode begins with a new one."""

    near_m: Annotated[float, MORE_THAN_0] = 0.01
    """Depths below this read as this, in m."""

    far_m: Annotated[float, Range(most=1e30)] = 10.0
    """Depths beyond this, and rays that hit nothing, read as this, in m."""

    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Segmentation: regular expressions over geoms and bodies by class; a body stands for its own geoms. A geom is of
    the first class that matches it; what none matches is background."""

    shadows: bool = False
    """Lights that cast shadows do so. It costs a second ray per light and pixel."""

    geom_groups: Annotated[tuple[int, ...], Range(least=0, most=5)] = (0, 1, 2)
    """Groups of geoms that the camera sees."""
