"""What takes in metrics, videos and checkpoints of a run."""

from pathlib import Path
from typing import Any

from mjtrain.video.video import Video


class WriterError(Exception):
    """A writer cannot write; the training does not depend on it."""


class Writer:
    """Takes what a run brings forth; a writer passes over what it has no place for.

    Every method may raise OSError or WriterError, which ends no training.
    """

    def write(self, metrics: dict[str, Any]) -> None:
        """Record the metrics of one iteration."""
        raise NotImplementedError

    def add_checkpoint(self, path: Path) -> None:
        """Take in a checkpoint that was just saved."""

    def add_video(self, video: Video) -> None:
        """Take in a video that was just done."""

    def fail(self) -> None:
        """Hear that the run ends with an exception; close comes next."""

    def close(self) -> None:
        """Flush and release."""
        raise NotImplementedError


def scalars(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the entries that are numbers."""
    return {key: value for key, value in metrics.items() if isinstance(value, int | float)}
