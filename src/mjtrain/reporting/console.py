"""Progress of a run on the terminal."""

import time
from typing import Any

from rich.console import Console
from rich.live import Live

from mjtrain.reporting.status import RunStatus, describe_evaluation, format_duration, format_number


class ProgressDisplay:
    """A live status on a terminal, one line per iteration elsewhere. Use as a context manager."""

    def __init__(self, max_iterations: int) -> None:
        self._max_iterations = max_iterations
        self._console = Console(highlight=False, force_jupyter=False)  # plain text in notebooks too, not HTML per line
        self._status = RunStatus(max_iterations)
        # FORCE_COLOR, which notebooks set, makes rich take everything for a terminal.
        is_live = self._console.is_terminal and self._console.file.isatty() and not self._console.is_dumb_terminal
        self._live = Live(self._status, console=self._console, auto_refresh=False) if is_live else None
        self._begin = time.monotonic()
        self._first_iteration: int | None = None

    def __enter__(self) -> "ProgressDisplay":
        if self._live is not None:
            self._live.start()
            self._console.show_cursor(True)  # a process that is killed cannot bring a hidden one back
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
        self._status.update(metrics, elapsed_s, remaining_s)
        if self._live is not None:
            self._live.refresh()
            return
        fields = {
            "iteration": f"{metrics['iteration']}/{self._max_iterations}",
            "env steps/s": f"{metrics['env_steps_per_second']:,.0f}",
            "reward": format_number(metrics["mean_reward"]),
            "episode length": format_number(metrics["mean_episode_length"]),
            "elapsed": format_duration(elapsed_s),
            "remaining": format_duration(remaining_s),
        }
        if "eval/return" in metrics:
            fields["evaluation"] = describe_evaluation(metrics)
        self._console.print(" | ".join(f"{name} {value}" for name, value in fields.items()), soft_wrap=True)

    def tell(self, line: str) -> None:
        """Print a line above the status."""
        self._console.print(line, soft_wrap=True, markup=False)

    def warn(self, line: str) -> None:
        """Print a warning above the status."""
        self._console.print(f"[yellow]warning: {line}", soft_wrap=True)
