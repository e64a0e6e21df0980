"""Progress of a run on the terminal: lines, a live status, and a warning about a rank that holds up the others."""

import contextlib
import math
import statistics
import time
from collections import deque
from typing import Any, Self

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

TREND_VALUES = 40
"""Iterations that the trend of the reward shows."""

SMOOTHED_ITERATIONS = 10
"""Iterations over which the times of ranks are averaged, so that the slowest one does not change all the time."""

NAMES_WIDTH = len("episode length") + 2
"""Columns that the names of the rows take."""

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*#@"

SLOWER = 1.2
"""A rank is slow if its busy time exceeds the median of the other ranks by this factor."""

STEADY_ITERATIONS = 10
"""Consecutive slow iterations after which there is a warning."""


class _PlainConsole(Console):
    """Shows text as it is, in notebooks too, and does not end the process if its reader is gone."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, force_jupyter=False)

    def on_broken_pipe(self) -> None:
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()


class Display:
    """Lines on the console, and below them, on a terminal, a status that lives. Use as a context manager.

    A console that takes nothing more, as a pipe without a reader or a full disk, does not end the work.
    """

    def __init__(self, status: ConsoleRenderable) -> None:
        self._console = _PlainConsole()
        # FORCE_COLOR, which notebooks set, makes rich take everything for a terminal.
        is_live = self._console.is_terminal and self._console.file.isatty() and not self._console.is_dumb_terminal
        self._live = Live(status, console=self._console, auto_refresh=False) if is_live else None

    def __enter__(self) -> Self:
        if self._live is not None:
            with contextlib.suppress(OSError, UnicodeError):
                self._live.start()
                self._console.show_cursor(True)  # a process that is killed cannot bring a hidden one back
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError, UnicodeError):
                self._live.stop()

    def refresh(self) -> bool:
        """Render the status again; return whether there is a terminal for it."""
        if self._live is not None:
            with contextlib.suppress(OSError, UnicodeError):
                self._live.refresh()
        return self._live is not None

    def tell(self, line: str | Text) -> None:
        """Print a line above the status."""
        text, encoding = str(line), self._console.encoding
        escaped = text.encode(encoding, "backslashreplace").decode(encoding)
        with contextlib.suppress(OSError):
            self._console.print(line if escaped == text else escaped, soft_wrap=True)


class RunStatus:
    """What is known about a run in progress; rich renders it."""

    def __init__(self, max_iterations: int) -> None:
        self._max_iterations = max_iterations
        self._metrics: dict[str, Any] = {}
        self._elapsed_s = 0.0
        self._remaining_s: float | None = None
        self._rewards: deque[float | None] = deque(maxlen=TREND_VALUES)
        self._evaluation: str | None = None
        self._busy_s: deque[list[float]] = deque(maxlen=SMOOTHED_ITERATIONS)

    def update(self, metrics: dict[str, Any], elapsed_s: float, remaining_s: float | None) -> None:
        """Add one iteration; elapsed_s counts from the start of this process's part of the run.

        The time that remains is None as long as it cannot be estimated.
        """
        self._metrics, self._elapsed_s, self._remaining_s = metrics, elapsed_s, remaining_s
        self._rewards.append(metrics["mean_reward"])
        if "eval/return" in metrics:
            self._evaluation = f"{describe_evaluation(metrics)} (iteration {metrics['iteration']})"
        busy_s = metrics.get("busy_time_by_rank_s") or []
        if self._busy_s and len(self._busy_s[-1]) != len(busy_s):
            self._busy_s.clear()  # the restored iteration may be of another number of ranks
        if busy_s:
            self._busy_s.append(busy_s)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render as rows of a name and a value; what does not fit is cut off."""
        metrics = self._metrics
        if not metrics:
            return
        total, done = self._max_iterations, metrics["iteration"]
        bar = ProgressBar(total=max(1, total), completed=min(done, total))
        progress = Table.grid(padding=(0, 1), expand=True)
        progress.add_column(no_wrap=True)
        progress.add_column(ratio=1)
        progress.add_row(f"{done}/{total}", bar)
        reward = format_number(metrics["mean_reward"])
        room = max(0, options.max_width - NAMES_WIDTH - len(reward) - 2)
        trend = sparkline(list(self._rewards), ascii_only=options.ascii_only)
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis" if not options.ascii_only else "crop", ratio=1)
        table.add_row("iteration", progress)
        to_go = "" if self._remaining_s is None else f", {format_duration(self._remaining_s)} to go"
        table.add_row("time", f"{format_duration(self._elapsed_s)} elapsed{to_go}")
        table.add_row("env steps/s", f"{metrics['env_steps_per_second']:,.0f}")
        table.add_row("reward", Text.assemble(reward, "  ", (trend[max(0, len(trend) - room) :], "cyan")))
        table.add_row("episode length", format_number(metrics["mean_episode_length"]))
        if self._evaluation is not None:
            table.add_row("evaluation", self._evaluation)
        if self._busy_s:
            table.add_row("slowest rank", self._describe_slowest())
        yield table

    def _describe_slowest(self) -> str:
        """Say which rank is the slowest, and how long the others wait for it in each iteration."""
        busy_s = [statistics.fmean(times) for times in zip(*self._busy_s, strict=True)]
        slowest = busy_s.index(max(busy_s))
        wait_s = busy_s[slowest] - statistics.median(time_s for rank, time_s in enumerate(busy_s) if rank != slowest)
        percent = 100 * wait_s / busy_s[slowest] if busy_s[slowest] > 0 else 0.0
        return f"{slowest} of {len(busy_s)}, the others wait {wait_s:.2f} s per iteration ({percent:.0f} %)"


def describe_evaluation(metrics: dict[str, Any]) -> str:
    """Say in a few words how an evaluation went."""
    parts = {"return": metrics["eval/return"], "length": metrics["eval/length"]}
    parts |= {name[5:]: value for name, value in metrics.items() if name.startswith("eval/success/")}
    return ", ".join(f"{name} {format_number(value)}" for name, value in parts.items())


def sparkline(values: list[float | None], *, ascii_only: bool = False) -> str:
    """Draw values as a line of blocks, from the least to the largest; spaces for values that are not finite."""
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if len(finite) < 2:
        return ""
    low, high = min(finite), max(finite)
    scale = (len(blocks) - 1) / (high - low) if high > low else 0.0
    return "".join(
        blocks[round((value - low) * scale)] if value is not None and math.isfinite(value) else " " for value in values
    ).lstrip()


def format_number(value: float | None) -> str:
    """Format a metric; a dash if there is none yet."""
    return "-" if value is None else f"{value:.2f}"


def format_duration(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"


class ProgressDisplay(Display):
    """A live status of a run on a terminal, one line per iteration elsewhere."""

    def __init__(self, max_iterations: int, restored_iteration: int = 0) -> None:
        self._max_iterations, self._restored_iteration = max_iterations, restored_iteration
        self._status = RunStatus(max_iterations)
        super().__init__(self._status)
        self._begin = time.monotonic()
        self._first: tuple[int, float] | None = None

    def update(self, metrics: dict[str, Any]) -> None:
        """Show one iteration; the restored one may come first, with an evaluation that it lacked."""
        now, iteration = time.monotonic(), metrics["iteration"]
        if self._first is None and iteration > self._restored_iteration:
            self._first = iteration, now  # until then a warm start and the compiler took time, too
        first, since = self._first or (iteration, now)
        left, elapsed_s = max(0, self._max_iterations - iteration), now - self._begin
        remaining_s = None if left else 0.0
        if iteration > first:
            remaining_s = left * (now - since) / (iteration - first)
        self._status.update(metrics, elapsed_s, remaining_s)
        if self.refresh():
            return
        fields = {
            "iteration": f"{iteration}/{self._max_iterations}",
            "env steps/s": f"{metrics['env_steps_per_second']:,.0f}",
            "reward": format_number(metrics["mean_reward"]),
            "episode length": format_number(metrics["mean_episode_length"]),
            "elapsed": format_duration(elapsed_s),
            "remaining": "-" if remaining_s is None else format_duration(remaining_s),
        }
        if "eval/return" in metrics:
            fields["evaluation"] = describe_evaluation(metrics)
        self.tell(" | ".join(f"{name} {value}" for name, value in fields.items()))

    def warn(self, line: str) -> None:
        """Print a warning above the status."""
        self.tell(Text(f"warning: {line}", style="yellow"))


class StragglerWatch:
    """Notices when one rank is steadily slower than the others."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._times: list[tuple[float, float]] = []

    def update(self, metrics: dict[str, Any]) -> str | None:
        """Add one iteration; return a warning, once for each time that a rank becomes steadily slow."""
        busy_s = metrics.get("busy_time_by_rank_s")
        if busy_s is None:
            return None
        rank = metrics["slowest_rank"]
        others_s = statistics.median(time_s for index, time_s in enumerate(busy_s) if index != rank)
        if busy_s[rank] <= SLOWER * others_s:
            self._rank, self._times = None, []
            return None
        if rank != self._rank:
            self._rank, self._times = rank, []
        self._times.append((busy_s[rank], others_s))
        if len(self._times) != STEADY_ITERATIONS:
            return None
        slow_s, median_s = (statistics.mean(times) for times in zip(*self._times, strict=True))
        return (
            f"rank {rank} is steadily slower than the others: {slow_s:.3f} s of work per iteration against "
            f"{median_s:.3f} s; they wait for it"
        )
