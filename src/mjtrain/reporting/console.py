"""Progress of a run on the terminal."""

import time
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table


class ProgressDisplay:
    """One live status on a terminal, a line per iteration elsewhere. Use as a context manager."""

    def __init__(self, max_iterations: int) -> None:
        self._max_iterations = max_iterations
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._begin = time.monotonic()
        self._first_iteration: int | None = None

    def __enter__(self) -> "ProgressDisplay":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, metrics: dict[str, Any]) -> None:
        """Show one iteration."""
        if self._first_iteration is None:
            self._first_iteration = metrics["iteration"] - 1
        elapsed_s = time.monotonic() - self._begin
        done = metrics["iteration"] - self._first_iteration
        remaining_s = elapsed_s / done * (self._max_iterations - metrics["iteration"])
        fields = {
            "iteration": f"{metrics['iteration']}/{self._max_iterations}",
            "env steps/s": f"{metrics['env_steps_per_second']:,.0f}",
            "reward": _number(metrics["mean_reward"]),
            "episode length": _number(metrics["mean_episode_length"]),
            "elapsed": _duration(elapsed_s),
            "remaining": _duration(remaining_s),
        }
        if self._live is None:
            line = " | ".join(f"{name} {value}" for name, value in fields.items())
            self._console.print(line, soft_wrap=True)
            return
        table = Table.grid(padding=(0, 2))
        for name, value in fields.items():
            table.add_row(f"[dim]{name}", value)
        self._live.update(table, refresh=True)

    def warn(self, line: str) -> None:
        """Print a line above the status."""
        self._console.print(f"[yellow]warning: {line}", soft_wrap=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
