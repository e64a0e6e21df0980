"""Everything the main rank reports about a run in progress."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from mjtrain.config import EnvConfig, TrainConfig
from mjtrain.runtime.event_log import write_event
from mjtrain.runtime.files import describe_absence
from mjtrain.sim.drawing.video import Video
from mjtrain.training.reporting.console import ProgressDisplay, StragglerWatch
from mjtrain.training.reporting.writer import Writer, WriterError
from mjtrain.training.reporting.writers import make_writers


class RunReport:
    """Writes metrics, shows progress and warns of stragglers. Use as a context manager."""

    def __init__(self, config: TrainConfig, run_dir: Path, first_iteration: int, max_iterations: int) -> None:
        """Open the writers; metrics of iterations after first_iteration are deleted."""
        self._run_dir = run_dir
        self._stack = ExitStack()
        self._failing: dict[str, dict[Callable[..., None], str]] = {}
        """What a target cannot do now, and why; a warning is given once for each reason, until that is done again."""
        self._videos: list[Video] = []
        self._directory_is_gone = False
        rewards = config.env.rewards if isinstance(config.env, EnvConfig) else {}
        self._unearned = {name for name, term in rewards.items() if term.weight > 0}
        self._has_episodes = False
        self._display = ProgressDisplay(max_iterations)
        self._writers = make_writers(config, run_dir, first_iteration, self.warn)
        for writer in self._writers:
            self._stack.push(partial(self._close, writer))
        self._stack.enter_context(self._display)
        self._stragglers = StragglerWatch()

    def __enter__(self) -> "RunReport":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if exc_info[0] is None and self._has_episodes and self._unearned:
            names = ", ".join(sorted(self._unearned))
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
        self._has_episodes |= metrics["mean_reward"] is not None
        self._unearned -= {name for name in self._unearned if metrics.get(f"reward/{name}")}
        self._display.update(metrics)
        warning = self._stragglers.update(metrics)
        if warning is not None:
            self.warn(warning)
        for writer in self._writers:
            self._attempt(_name(writer), writer.write, metrics)
        self.flush_videos()

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
                with suppress(OSError):  # it does no harm
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
