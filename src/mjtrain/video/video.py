"""A finished video."""

from dataclasses import dataclass
from pathlib import Path


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
