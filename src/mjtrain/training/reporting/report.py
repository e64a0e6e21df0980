"""Everything the main rank reports about a run in progress: metrics.jsonl, loggers, and the terminal."""

import contextlib
import itertools
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from mjtrain.config import EnvConfig, TrainConfig
from mjtrain.runtime.event_log import METRICS_FILE, append_line, describe_skipped, parse_line, read_lines, write_event
from mjtrain.runtime.files import describe_absence, saying_where, write_whole
from mjtrain.sim.drawing.video import Video
from mjtrain.training.reporting.console import ProgressDisplay, StragglerWatch
from mjtrain.training.reporting.wandb_writer import WandbWriter
from mjtrain.training.reporting.writer import LogWriterAdapter, TrackioWriter, Writer, WriterError, scalars

REOPEN_S = 30.0
"""How long after a failure another event file is tried, in seconds."""


class JsonlWriter(Writer):
    """One JSON object per iteration; each line is written completely before the next iteration begins."""

    def __init__(self, path: Path, first_iteration: int) -> None:
        """Open the file and remove the lines of iterations after the first, and those that are broken; events stay."""
        self.num_broken = 0
        self._first_iteration = first_iteration
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            rows = [(line, parse_line(line)) for line in lines]
            self.num_broken = sum(row is None and line.endswith(b"\n") for line, row in rows)
            kept = [line for line, row in rows if row and ("event" in row or row["iteration"] <= first_iteration)]
            content = b"".join(line.rstrip(b"\r\n") + b"\n" for line in kept)
            with saying_where("", path):
                try:
                    write_whole(path, content)
                except OSError:  # a full disk has no room for another file, and ends no restart
                    _shorten(path, content)
        self._path = path
        with saying_where("", path):  # such as a run directory that has become read-only
            self._file = path.open("a+b", buffering=0)

    def write(self, metrics: dict[str, Any]) -> None:
        """Append a line; numbers that JSON does not have become null.

        The line of the first iteration, which an earlier start wrote, is replaced. An OSError leaves the file as it is.
        """
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in metrics.items()
        }
        self._restore()
        if metrics["iteration"] == self._first_iteration:
            lines = self._path.read_bytes().splitlines()
            others = [line for line in lines if _key(line) != self._first_iteration]
            self._replace([*others, json.dumps(finite).encode()])
        else:
            append_line(self._file, finite)

    def _restore(self) -> None:
        """Continue in the file of this name, with the lines that it lacks if it was deleted or replaced."""
        if describe_absence(self._path.parent) is not None:
            return  # the run directory may come back
        there = self._path.stat() if self._path.exists() else None
        if there is not None and os.path.samestat(there, os.fstat(self._file.fileno())):
            return
        self._file.seek(0)
        lines = self._file.read().splitlines()
        if there is not None:
            theirs = {_key(line): line for line in self._path.read_bytes().splitlines()}
            lines = [theirs.pop(_key(line), line) for line in lines] + list(theirs.values())
        self._replace(lines)

    def _replace(self, lines: Iterable[bytes]) -> None:
        write_whole(self._path, b"".join(line + b"\n" for line in lines))
        self._file.close()
        self._file = self._path.open("a+b", buffering=0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _shorten(path: Path, content: bytes) -> None:
    """Give a file a content of which it has the most already, in the same order; what both begin with stays."""
    with path.open("r+b") as file:
        pairs = zip(file.read(), content, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        file.seek(same)
        file.write(content[same:])  # before it is cut, as another process may take the room
        file.truncate(len(content))


def _key(line: bytes) -> int | bytes:
    """Return the iteration of a line; an event, or what is not one of ours, is its own key."""
    row = parse_line(line)
    return line if row is None or "event" in row else row["iteration"]


class TensorBoardWriter(Writer):
    """One scalar per number, over iterations. After a failure, as of a full disk, another event file is begun."""

    def __init__(self, run_dir: Path, first_iteration: int) -> None:
        self._run_dir = run_dir
        self._error: OSError | None = None
        self._reopen_at_s = 0.0
        self._writer: Any = None
        try:
            self._open(first_iteration)
        except OSError as error:  # the next write raises it
            self._fail(error)

    def _open(self, first_iteration: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._run_dir.stat()  # TensorBoard would make one that is missing; it may come back
        _hide_failures_of_threads()
        # purge_step hides later steps in the files of earlier starts.
        self._writer = SummaryWriter(log_dir=str(self._run_dir), flush_secs=10, purge_step=first_iteration + 1)

    def write(self, metrics: dict[str, Any]) -> None:
        """Add the scalars; an OSError may be about earlier ones that were queued."""
        self._attempt(metrics["iteration"], partial(self._add_scalars, metrics))

    def _add_scalars(self, metrics: dict[str, Any]) -> None:
        for key, value in scalars(metrics).items():
            self._writer.add_scalar(key, value, metrics["iteration"])

    def _attempt(self, iteration: int, action: Callable[[], None]) -> None:
        """Write. TensorBoard's thread ends with its first error, and a writer without it never writes again."""
        try:
            if self._error is not None:
                if time.monotonic() < self._reopen_at_s:
                    raise self._error
                self._open(iteration - 1)
            action()
        except OSError as error:
            if error is not self._error:
                self._fail(error)
            raise
        self._error = None

    def _fail(self, error: OSError) -> None:
        self._error, self._reopen_at_s = error, time.monotonic() + REOPEN_S
        with contextlib.suppress(OSError):
            self.close()

    def add_video(self, video: Video) -> None:
        """Show the animated picture among the images."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        if video.gif is not None:
            image = Summary.Image(encoded_image_string=video.gif.read_bytes(), colorspace=3)
            summary = Summary(value=[Summary.Value(tag="video", image=image)])
            self._attempt(
                video.iteration, lambda: self._writer._get_file_writer().add_summary(summary, video.iteration)
            )

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()


def _hide_failures_of_threads() -> None:
    """Have no traceback printed of TensorBoard's threads; the next write raises their errors."""
    from tensorboard.summary.writer.event_file_writer import _AsyncWriterThread

    before = threading.excepthook
    if getattr(before, "hides_tensorboard", False):
        return

    def hook(failed: threading.ExceptHookArgs) -> None:
        if not (isinstance(failed.thread, _AsyncWriterThread) and isinstance(failed.exc_value, OSError)):
            before(failed)

    hook.hides_tensorboard = True  # pyright: ignore[reportFunctionMemberAccess]
    threading.excepthook = hook


def make_writers(config: TrainConfig, run_dir: Path, first_iteration: int, warn: Callable[[str], None]) -> list[Writer]:
    """Open metrics.jsonl and the logger of the config; see `RunReport` for the arguments."""
    metrics = JsonlWriter(run_dir / METRICS_FILE, first_iteration)
    if metrics.num_broken:
        warn(f"{describe_skipped(run_dir, metrics.num_broken)} removed")
    writers: list[Writer] = [metrics]
    if config.run.logger == "tensorboard":
        writers.append(TensorBoardWriter(run_dir, first_iteration))
    elif (name := config.run.logger) != "none":
        try:
            if name == "wandb":
                writers.append(WandbWriter(run_dir, config.run, warn))
            else:
                writers.append((TrackioWriter if name == "trackio" else LogWriterAdapter)(config, run_dir))
        except WriterError as error:
            warn(f"{'W&B' if name == 'wandb' else name} cannot record ({error}); training continues without it")
    return writers


class RunReport:
    """Writes metrics, shows progress and warns of stragglers. Use as a context manager."""

    def __init__(self, config: TrainConfig, run_dir: Path, first_iteration: int, max_iterations: int) -> None:
        """Open the writers; metrics of iterations after first_iteration are deleted."""
        self._run_dir = run_dir
        self._stack = contextlib.ExitStack()
        self._failing: dict[str, dict[Callable[..., None], str]] = {}
        """What a target cannot do now, and why; a warning is given once for each reason, until that is done again."""
        self._videos: list[Video] = []
        self._directory_is_gone = False
        rewards = config.env.rewards if isinstance(config.env, EnvConfig) else {}
        self._rewards = {f"reward/{name}" for name, term in rewards.items() if term.weight > 0}
        self._earned: dict[str, bool] = {}
        """Whether an episode earned something of a reward, for those of which an episode has ended."""
        self._display = ProgressDisplay(max_iterations, first_iteration)
        self._writers = make_writers(config, run_dir, first_iteration, self.warn)
        for writer in self._writers:
            self._stack.push(partial(self._close, writer))
        self._stack.enter_context(self._display)
        self._stragglers = StragglerWatch()
        for row in read_lines(run_dir):  # of earlier starts
            self._note_rewards(row)

    def __enter__(self) -> "RunReport":
        return self

    def __exit__(self, *exc_info: object) -> None:
        names = ", ".join(sorted(key.removeprefix("reward/") for key, earned in self._earned.items() if not earned))
        if exc_info[0] is None and names:
            self.warn(f"no episode of this training earned anything of --env.rewards: {names}")
        self._stack.__exit__(*exc_info)  # pyright: ignore[reportArgumentType]

    def warn(self, line: str) -> None:
        """Show a warning."""
        self._display.warn(line)

    def tell(self, line: str) -> None:
        """Show a line."""
        self._display.tell(line)

    def add_event(self, event: str, line: str | None, fields: dict[str, Any]) -> None:
        """Record an event in metrics.jsonl, and show a line about it if there is one."""
        if line is not None:
            self.warn(line)
        self._attempt("metrics.jsonl", write_event, self._run_dir, event, **fields)

    def update(self, metrics: dict[str, Any]) -> None:
        """Record and show one iteration."""
        self._check_directory()
        self._note_rewards(metrics)
        self._display.update(metrics)
        warning = self._stragglers.update(metrics)
        if warning is not None:
            self.warn(warning)
        for writer in self._writers:
            self._attempt(_name(writer), writer.write, metrics)
        self.flush_videos()

    def _note_rewards(self, metrics: dict[str, Any]) -> None:
        for key in self._rewards & metrics.keys():
            self._earned[key] = bool(metrics[key]) or self._earned.get(key, False)

    def _check_directory(self) -> None:
        """Warn once if the run directory is missing. An unmounted file system may come back, so training continues."""
        problem, is_known = describe_absence(self._run_dir), self._directory_is_gone
        self._directory_is_gone = problem is not None
        if problem is not None and not is_known:
            self.warn(
                f"the run directory {self._run_dir} {problem}; training continues, but nothing "
                "is saved unless the directory comes back; without it the run ends with status 1"
            )

    def add_checkpoint(self, path: Path) -> None:
        """Record a checkpoint that was just saved."""
        for writer in self._writers:
            self._attempt(_name(writer), writer.add_checkpoint, path)

    def add_videos(self, videos: Iterable[Video]) -> None:
        """Take finished videos; they are reported after the next metrics, as W&B's steps never go back."""
        self._videos += videos

    def flush_videos(self) -> None:
        """Report the videos that were added, and delete their GIFs."""
        for video in self._videos:
            for writer in self._writers:
                self._attempt(_name(writer), writer.add_video, video)
            if video.gif is not None:
                with contextlib.suppress(OSError):  # it does no harm
                    video.gif.unlink()
        self._videos.clear()

    def _close(self, writer: Writer, error_type: object, *_: object) -> None:
        if error_type is not None:
            writer.fail()
        self._attempt(_name(writer), writer.close)

    def _attempt(self, name: str, action: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Write; a failing disk or service is reported once per target and reason, and the training continues."""
        failing = self._failing.setdefault(name, {})
        try:
            action(*args, **kwargs)
        except (OSError, WriterError) as error:
            reason = str(getattr(error, "strerror", None) or error)
            is_known = action in failing or reason in failing.values()  # that of one action may change
            if not is_known and describe_absence(self._run_dir) is None:
                self.warn(f"{name} cannot write ({reason}); training continues without it")
            failing.setdefault(action, reason)
        else:
            if (over := failing.get(action)) is not None:
                self._failing[name] = {other: reason for other, reason in failing.items() if reason != over}


def _name(writer: Writer) -> str:
    return type(writer).__name__
