"""The live status of a run: a few rows that fit any terminal."""

import math
import statistics
from collections import deque
from datetime import timedelta
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
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


class RunStatus:
    """What is known about a run in progress; rich renders it."""

    def __init__(self, max_iterations: int) -> None:
        self._max_iterations = max_iterations
        self._metrics: dict[str, Any] = {}
        self._elapsed_s = 0.0
        self._remaining_s = 0.0
        self._rewards: deque[float | None] = deque(maxlen=TREND_VALUES)
        self._evaluation: str | None = None
        self._busy_s: deque[list[float]] = deque(maxlen=SMOOTHED_ITERATIONS)

    def update(self, metrics: dict[str, Any], elapsed_s: float, remaining_s: float) -> None:
        """Add one iteration.

        Args:
            metrics: As in metrics.jsonl.
            elapsed_s: Seconds since the start of this process's part of the run.
            remaining_s: Estimated seconds to the end.
        """
        self._metrics, self._elapsed_s, self._remaining_s = metrics, elapsed_s, remaining_s
        self._rewards.append(metrics["mean_reward"])
        if "eval/return" in metrics:
            self._evaluation = f"{describe_evaluation(metrics)} (iteration {metrics['iteration']})"
        if metrics.get("busy_time_by_rank_s"):
            self._busy_s.append(metrics["busy_time_by_rank_s"])

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
        table.add_row("time", f"{format_duration(self._elapsed_s)} elapsed, {format_duration(self._remaining_s)} to go")
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
    """Draw values as a line of blocks, from the least to the largest; spaces where there is no finite value."""
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
    return str(timedelta(seconds=round(seconds)))
