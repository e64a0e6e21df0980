"""Progress of a sweep on the terminal."""

import statistics
import time
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mjtrain.tools.sweep.plan import SweepPlan
from mjtrain.tools.sweep.run_files import TrialResult, count_states, find_best
from mjtrain.tools.sweep.running_trial import RunningTrial
from mjtrain.tools.sweep.space import format_value, shorten
from mjtrain.tools.sweep.study import Trial
from mjtrain.training.reporting.console import format_duration


class SweepDisplay:
    """A live table of the running trials on a terminal, a line for each start and end elsewhere.

    Use as a context manager.
    """

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan
        self._results: Sequence[TrialResult] = ()
        self._running: Sequence[RunningTrial] = ()
        self._began_s: dict[int, float] = {}
        self._durations_s: list[float] = []
        self._console = Console(highlight=False, markup=False, emoji=False, force_jupyter=False)
        is_live = self._console.is_terminal and self._console.file.isatty() and not self._console.is_dumb_terminal
        self._live = Live(self, console=self._console, auto_refresh=False) if is_live else None

    def __enter__(self) -> "SweepDisplay":
        if self._live is not None:
            self._live.start()
            self._console.show_cursor(True)  # a process that is killed cannot bring a hidden one back
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, line: str) -> None:
        """Print a line above the table."""
        self._console.print(line, soft_wrap=True)

    def tell_start(self, trial: Trial) -> None:
        """Say that a trial begins, with which settings."""
        self._began_s[trial.number] = time.monotonic()
        settings = ", ".join(f"{shorten(name)} {format_value(value)}" for name, value in trial.params.items())
        self.tell(f"trial {trial.number} {'continues' if trial.was_begun else 'begins'}: {settings}")

    def set_results(self, results: Sequence[TrialResult], ended: RunningTrial | None = None) -> None:
        """Take in how all trials are."""
        self._results = results
        if ended is not None:
            number = ended.trial.number
            if number in self._began_s:
                self._durations_s.append(time.monotonic() - self._began_s.pop(number))
                self.tell(f"trial {number} {ended.ended} | {self._describe()}")

    def update(self, running: Sequence[RunningTrial]) -> None:
        """Show how far the running trials are."""
        self._running = running
        if self._live is not None:
            self._live.refresh()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render a row for each running trial, and a line about all."""
        table = Table(box=None, padding=(0, 2, 0, 0))
        for heading in ("trial", "iteration", self._plan.metric, "time"):
            table.add_column(heading, no_wrap=True)
        for running in self._running:
            began_s = self._began_s.get(running.trial.number)
            elapsed = "" if began_s is None else format_duration(time.monotonic() - began_s)
            seed = f" seed {running.seed_index}" if self._plan.options.seeds_per_trial > 1 else ""
            value = "-" if running.value is None else f"{running.value:.4g}"
            table.add_row(
                f"{running.trial.number}{seed}", f"{running.iteration}/{self._plan.max_iterations}", value, elapsed
            )
        yield Group(table, Text(self._describe(), no_wrap=True, overflow="ellipsis"))

    def _describe(self) -> str:
        counts, total = count_states(self._results), self._plan.options.num_trials
        ended = counts["complete"] + counts["pruned"] + counts["failed"]
        words = [
            f"{ended}/{total} trials",
            *(f"{counts[name]} {name}" for name in ("pruned", "failed", "paused") if counts[name]),
        ]
        best = find_best(self._results, maximize=self._plan.maximize)
        if best is not None:
            words.append(f"best {best.value:.6g} of trial {best.number}")
        if self._durations_s and ended + counts["paused"] < total:
            at_a_time = max(len(self._plan.slots), counts["running"])  # other processes may run trials too
            to_go_s = statistics.fmean(self._durations_s) * (total - ended - counts["paused"]) / at_a_time
            words.append(f"about {format_duration(to_go_s)} to go")
        return ", ".join(words)
