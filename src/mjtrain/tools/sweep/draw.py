"""The picture of a sweep: history, importances, and values against settings."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjtrain.tools.sweep.plan import SweepPlan
from mjtrain.tools.sweep.run_files import TrialResult
from mjtrain.tools.sweep.space import Parameter, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_COLUMNS = 4


def draw_sweep(trials: Sequence[TrialResult], importances: dict[str, float], plan: SweepPlan, out: Path) -> Path | None:
    """Draw a sweep.

    Returns:
        The file; None if no trial has a value.

    Raises:
        OSError: It cannot be written.
    """
    from matplotlib.figure import Figure

    valued = [trial for trial in trials if trial.value is not None]
    if not valued:
        return None
    space = plan.options.space
    columns = min(_MAX_COLUMNS, max(3, len(space)))
    lines = 2 + -(-len(space) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * lines), layout="constrained")
    grid = figure.add_gridspec(lines, columns)
    _draw_history(figure.add_subplot(grid[0, : columns - 1]), valued, plan)
    _draw_importances(figure.add_subplot(grid[0, columns - 1]), importances)
    _draw_parallel(figure.add_subplot(grid[1, :]), valued, plan)
    for index, parameter in enumerate(space):
        _draw_slice(figure.add_subplot(grid[2 + index // columns, index % columns]), valued, parameter, plan.metric)
    figure.suptitle(f"{plan.options.task}: {plan.metric} of {len(trials)} trials")
    figure.savefig(out, dpi=100)
    return out


def _draw_history(axes: "Axes", trials: Sequence[TrialResult], plan: SweepPlan) -> None:
    """Draw the value of each trial, and the best one so far."""
    from matplotlib.ticker import MaxNLocator

    for state, marker in (("complete", "o"), ("pruned", "x")):
        mine = [trial for trial in trials if trial.state == state]
        axes.scatter([t.number for t in mine], [t.value or 0.0 for t in mine], marker=marker, label=state)
    best: list[tuple[int, float]] = []
    for trial in trials:
        if trial.state == "complete" and trial.value is not None:
            choose = max if plan.maximize else min
            best.append((trial.number, choose(trial.value, best[-1][1]) if best else trial.value))
    if best:
        axes.step(*zip(*best, strict=True), where="post", color="tab:green", label="best so far")
    axes.set(xlabel="trial", ylabel=plan.metric, title="history")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_importances(axes: "Axes", importances: dict[str, float]) -> None:
    axes.set_title("importance")
    if not importances:
        axes.text(0.5, 0.5, "too few trials", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    names = list(importances)[::-1]
    axes.barh([shorten(name) for name in names], [importances[name] for name in names])
    axes.set_xlim(0, 1)


def _draw_parallel(axes: "Axes", trials: Sequence[TrialResult], plan: SweepPlan) -> None:
    """Draw a line for each complete trial through its settings to its value; the better, the darker."""
    complete = sorted(
        (trial for trial in trials if trial.state == "complete"),
        key=lambda trial: (trial.value or 0.0) * (1 if plan.maximize else -1),
    )
    space = plan.options.space
    values = [trial.value or 0.0 for trial in complete]
    low, high = min(values, default=0.0), max(values, default=1.0)
    for rank, trial in enumerate(complete):
        heights = [_height(parameter, trial.params[parameter.name]) for parameter in space]
        heights.append(((trial.value or 0.0) - low) / (high - low) if high > low else 0.5)
        axes.plot(heights, color=str(0.85 * (1 - (rank + 1) / len(complete))), alpha=0.8)
    for index, parameter in enumerate(space):
        axes.axvline(index, color="0.7", linewidth=0.8)
        bounds = parameter.tested_values
        for height, text in ((-0.06, bounds[0]), (1.03, bounds[-1])):
            axes.text(index, height, f"{text:.3g}" if isinstance(text, float) else str(text), ha="center", fontsize=8)
    for height, text in ((-0.06, low), (1.03, high)):
        axes.text(len(space), height, f"{text:.4g}", ha="center", fontsize=8)
    axes.set(ylim=(-0.1, 1.1), yticks=[], title="complete trials, the best one black")
    axes.set_xticks(range(len(space) + 1), [*(shorten(parameter.name) for parameter in space), plan.metric], fontsize=8)


def _height(parameter: Parameter, value: Any) -> float:
    """Place a value between the bounds of its parameter, from 0 to 1."""
    if parameter.choices:
        return parameter.choices.index(value) / (len(parameter.choices) - 1)
    low, high = parameter.low, parameter.high
    if parameter.kind == "log":
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low)


def _draw_slice(axes: "Axes", trials: Sequence[TrialResult], parameter: Parameter, metric: str) -> None:
    for state, marker in (("complete", "o"), ("pruned", "x")):
        mine = [trial for trial in trials if trial.state == state]
        settings = [trial.params[parameter.name] for trial in mine]
        if parameter.choices:
            settings = [parameter.choices.index(setting) for setting in settings]
        axes.scatter(settings, [trial.value or 0.0 for trial in mine], marker=marker, label=state, alpha=0.8)
    if parameter.choices:
        axes.set_xticks(range(len(parameter.choices)), parameter.choices, fontsize=8)
    if parameter.kind == "log":
        axes.set_xscale("log")
    if not parameter.choices:
        axes.set_xlim(parameter.low, parameter.high)
    axes.set(xlabel=shorten(parameter.name), ylabel=metric)
    axes.grid(alpha=0.3)
