"""Progress of a sweep on the terminal."""

import statistics
import time
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from mjtrain.tools.sweep.plan import SweepPlan
from mjtrain.tools.sweep.results import TrialResult, count_states, find_best
from mjtrain.tools.sweep.running_trial import RunningTrial
from mjtrain.tools.sweep.space import format_value, shorten
from mjtrain.tools.sweep.study import Trial
from mjtrain.training.reporting.console import format_duration
from mjtrain.training.reporting.display import Display


class SweepDisplay(Display):
    """A live table of the running trials on a terminal, a line for each start and end elsewhere."""

    def __init__(self, plan: SweepPlan) -> None:
        super().__init__(self)
        self._plan = plan
        self._results: Sequence[TrialResult] = ()
        self._running: Sequence[RunningTrial] = ()
        self._began_s: dict[int, float] = {}
        self._durations_s: list[float] = []

    def tell_start(self, trial: Trial) -> None:
        """Say that a trial begins, with which settings."""
        self._began_s[trial.number] = time.monotonic()
        settings = ", ".join(f"{shorten(name)} {format_value(value)}" for name, value in trial.params.items())
        self.tell(f"trial {trial.number} {'continues' if trial.was_begun else 'begins'}: {settings}")

    def set_results(self, results: Sequence[TrialResult], ended: RunningTrial | None = None) -> None:
        """Take in how all trials are."""
        self._results = results
        if ended is not None and (began_s := self._began_s.pop(ended.trial.number, None)) is not None:
            self._durations_s.append(time.monotonic() - began_s)
            self.tell(f"trial {ended.trial.number} {ended.ended} | {self._describe()}")

    def update(self, running: Sequence[RunningTrial]) -> None:
        """Show how far the running trials are."""
        self._running = running
        self.refresh()

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
            iteration = f"{running.iteration}/{self._plan.max_iterations}"
            table.add_row(f"{running.trial.number}{seed}", iteration, value, elapsed)
        yield table
        yield Text(self._describe(), no_wrap=True, overflow="ellipsis")

    def _describe(self) -> str:
        counts, total = count_states(self._results), self._plan.options.trials
        ended = counts["complete"] + counts["pruned"] + counts["failed"]
        words = [f"{ended}/{total} trials"]
        words += [f"{counts[name]} {name}" for name in ("pruned", "failed", "paused") if counts[name]]
        if best := find_best(self._results, self._plan):
            words.append(f"best {best.value:.6g} of trial {best.number}")
        to_go = total - ended - counts["paused"]
        if self._durations_s and to_go > 0:
            at_a_time = max(len(self._plan.slots), counts["running"])  # other processes may run trials too
            to_go_s = statistics.fmean(self._durations_s) * to_go / at_a_time
            words.append(f"about {format_duration(to_go_s)} to go")
        return ", ".join(words)
