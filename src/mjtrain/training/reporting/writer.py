"""The interface of writers: they record metrics, videos and checkpoints of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mjtrain.runtime.errors import summarise
from mjtrain.sim.drawing.video import Video


class WriterError(Exception):
    """A writer cannot write; the training continues."""


class Writer:
    """Records metrics, checkpoints and videos of a run; the methods that a writer does not override do nothing.

    Every method may raise OSError or WriterError; the training continues.
    """

    def write(self, metrics: dict[str, Any]) -> None:
        """Record the metrics of one iteration."""
        raise NotImplementedError

    def add_checkpoint(self, path: Path) -> None:
        """Record a checkpoint that was just saved."""

    def add_video(self, video: Video) -> None:
        """Record a video that was just finished."""

    def fail(self) -> None:
        """Note that the run ends with an exception; `close` is called next."""

    def close(self) -> None:
        """Flush and release."""
        raise NotImplementedError


def guard(action: Callable[[], Any]) -> Any:
    """Call a service or a class of another package, and turn all its exceptions into a WriterError of one line."""
    try:
        return action()
    except Exception as error:
        raise WriterError(summarise(error)) from error


def scalars(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the entries that are numbers."""
    return {key: value for key, value in metrics.items() if isinstance(value, int | float)}
