"""The interface of writers, which record a run; classes with the interface of RSL-RL's `LogWriter`, and trackio."""

import importlib
from collections.abc import Callable
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any, get_args

from mjtrain.config import LoggerName, TrainConfig, to_plain
from mjtrain.runs.checkpoint import checkpoint_iteration
from mjtrain.runtime.errors import RequestError, summarise
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


def load_log_writer(name: str) -> Callable[..., Any]:
    """Import a class that has a method add_scalar."""
    module, separator, attribute = name.partition(":")
    if not separator:
        known = ", ".join(get_args(LoggerName))
        raise RequestError(f"--logger {name}: choose from {known}, or give package.module:Class")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:  # of whatever the module does
        raise RequestError(f"--logger {name}: {module} cannot be imported ({error})") from error
    if not isinstance(found, type):
        raise RequestError(f"--logger {name}: {module} has no class {attribute}")
    if not callable(getattr(found, "add_scalar", None)):
        raise RequestError(
            f"--logger {name}: {attribute} has no method add_scalar(tag, scalar_value, global_step), as a LogWriter of "
            "RSL-RL has"
        )
    return found


class LogWriterAdapter(Writer):
    """Passes what is recorded to a `LogWriter`; whatever it raises does not end the training."""

    def __init__(self, config: TrainConfig, run_dir: Path) -> None:
        """Make the writer that --logger names, as RSL-RL does: with log_dir; raises a WriterError if that fails."""
        self._writer: Any = guard(lambda: load_log_writer(config.run.logger)(log_dir=str(run_dir)))
        env, agent = to_plain(config.env), to_plain(config.agent)
        self._call("store_config", env, {**agent, "task": config.task, "run": to_plain(config.run)})

    def write(self, metrics: dict[str, Any]) -> None:
        """Add the scalars."""
        for key, value in scalars(metrics).items():
            self._call("add_scalar", key, value, metrics["iteration"])

    def add_checkpoint(self, path: Path) -> None:
        """Pass a checkpoint that was saved, with its iteration."""
        self._call("save_model", str(path), checkpoint_iteration(path))

    def add_video(self, video: Video) -> None:
        """Pass a video."""
        self._call("save_video", video.path, video.iteration)

    def close(self) -> None:
        """Let it finish."""
        self._call("stop")

    def _call(self, method: str, *args: Any) -> None:
        function = getattr(self._writer, method, None)
        if function is not None:
            guard(lambda: function(*args))


class TrackioWriter(Writer):
    """A run of trackio, named after the run directory; a resumed training continues it."""

    def __init__(self, config: TrainConfig, run_dir: Path) -> None:
        """Start or continue the run; raises a WriterError if trackio cannot."""
        everything = {"task": config.task, "env": to_plain(config.env), "agent": to_plain(config.agent)}
        trackio: Any = guard(lambda: importlib.import_module("trackio"))
        begin = partial(trackio.init, project="mjtrain", name=run_dir.name, config=everything, resume="allow")
        # init finishes the current run of its context, which may be one of the caller's program.
        self._run: Any = guard(lambda: Context().run(begin))

    def write(self, metrics: dict[str, Any]) -> None:
        """Log the scalars of an iteration together."""
        guard(lambda: self._run.log(scalars(metrics), step=metrics["iteration"]))

    def close(self) -> None:
        """Finish the run."""
        guard(self._run.finish)
