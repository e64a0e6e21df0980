"""What is drawn, and the finished video."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mjtrain.sim.drawing.tiles import CameraStream


@dataclass(frozen=True, kw_only=True)
class Clip:
    """The positions of one world over time."""

    qpos: np.ndarray
    """float32, shape (frames, nq)."""

    fps: float
    """Frames per second of simulated time."""

    iteration: int
    """Training iterations that the policy had done when the clip begins."""

    ghost: np.ndarray | None = None
    """Positions of a translucent second robot. float32, shape (frames, nq)."""

    images: dict[CameraStream, np.ndarray] = field(default_factory=dict)
    """What the policy saw, by camera and stream. Shape (frames, channels, height, width)."""


@dataclass(frozen=True, kw_only=True)
class Video:
    """A video that is done."""

    path: Path
    """MP4 file."""

    gif: Path | None
    """A smaller animated picture of the same, for TensorBoard."""

    iteration: int
    """Iterations that the run had when it begins, which may be a while ago."""

    cpu_s: float
    """CPU time that drawing and encoding took, in seconds; the first one includes the start of the process."""
