"""Draw curves with matplotlib."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjtrain.runtime.errors import RequestError, require
from mjtrain.runtime.files import replacing
from mjtrain.tools.plotting.curves import Group, RunCurves, XAxis, average, x_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS: dict[XAxis, str] = {
    "iterations": "iterations",
    "env-steps": "env steps",
    "wall-time": "training time, s",
}
SUFFIXES = (".png", ".svg")


def check_out(out: Path) -> None:
    """Check, before any work, that the picture can be drawn and written."""
    require("plot", "plot", "matplotlib")
    if out.suffix not in SUFFIXES:
        raise RequestError(f"--out {out}: give a name that ends in {' or '.join(SUFFIXES)}")
    if not out.absolute().parent.is_dir():
        raise RequestError(f"--out {out}: the folder {out.parent} does not exist")


_CHARACTERS_PER_INCH = 12
"""Characters of a label in one inch, at the size of the legend's letters."""


def draw_curves(
    groups: Sequence[Group], metrics: Sequence[str], axis: XAxis, out: Path, *, title: str | None = None
) -> None:
    """Write what `make_figure` returns to a PNG or SVG file."""
    figure = make_figure(groups, metrics, axis, title=title)
    with replacing(out.resolve()) as file:  # a link to a picture stays one
        figure.savefig(file, format=out.suffix[1:], dpi=100)


def make_figure(groups: Sequence[Group], metrics: Sequence[str], axis: XAxis, *, title: str | None = None) -> "Figure":
    """Draw one set of axes per metric, and one curve per group: the mean of its runs, one standard deviation around it.

    Args:
        axis: The horizontal axis. Dotted lines mark restarts, in groups of one run.
    """
    from matplotlib.figure import Figure

    columns = min(len(metrics), 3)
    lines = -(-len(metrics) // columns)
    size = (6.4, 3.6) if len(metrics) == 1 else (4.6 * columns, 3.2 * lines)
    figure = Figure(figsize=size, layout="constrained")
    all_axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes, metric in zip(all_axes, metrics, strict=False):
        for group in groups:
            curve = average(group.runs, metric, axis)
            (line,) = axes.plot(curve.x, curve.mean, label=group.label)
            if len(group.runs) > 1:
                low, high = curve.mean - curve.std, curve.mean + curve.std
                axes.fill_between(curve.x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
            else:
                _mark_restarts(axes, group.runs, axis, line.get_color())
        axes.set(xlabel=LABELS[axis], ylabel=metric)
        axes.grid(alpha=0.3)
    for axes in all_axes[len(metrics) :]:
        axes.set_visible(False)
    handles, labels = all_axes[0].get_legend_handles_labels()
    wrapped = ["\n".join(textwrap.wrap(label, int(_CHARACTERS_PER_INCH * size[0]))) for label in labels]
    # Below the axes: a label may be as long as a setting.
    figure.legend(handles, wrapped, loc="outside lower center", fontsize=8)
    if title is not None:
        figure.suptitle(title)
    return figure


def _mark_restarts(axes: Any, runs: Sequence[RunCurves], axis: XAxis, color: Any) -> None:
    for run in runs:
        for x, row in zip(x_values(run.rows, axis), run.rows, strict=True):
            if row["iteration"] in run.restarts:
                axes.axvline(x, color=color, alpha=0.5, linestyle=":")
