"""Metrics of runs as curves: read them, group them over seeds, average them, and draw them with matplotlib."""

import fnmatch
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mjtrain.config import to_plain
from mjtrain.env.catalog import resolve_task_name
from mjtrain.runs.history import RunSearch
from mjtrain.runs.history import find_runs as find_task_runs
from mjtrain.runs.run import Rows, parse_metrics
from mjtrain.runs.run_dir import load_params, read_learner
from mjtrain.runtime.errors import RequestError, require, suggest
from mjtrain.runtime.event_log import METRICS_FILE, read_lines
from mjtrain.runtime.files import check_writable, replacing, saying_where, shorten
from mjtrain.sim.engines import resolve_engine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

XAxis = Literal["iterations", "env-steps", "wall-time"]
LABELS: dict[XAxis, str] = {"iterations": "iterations", "env-steps": "env steps", "wall-time": "training time, s"}
SUFFIXES = (".png", ".svg")

_MAX_LABELS = 3
"""Differing settings that a label names at most."""

_CHARACTERS_PER_INCH = 12
"""Characters of a label in one inch, at the size of the legend's letters."""


@dataclass(frozen=True, kw_only=True)
class RunCurves:
    """The metrics of one run."""

    name: str
    rows: Rows
    """One per iteration, ascending; empty before the first one is completed."""

    settings: dict[str, Any]
    """Settings of the training, by dotted name; runs with equal settings differ in their seeds only."""

    restarts: tuple[int, ...] = ()
    """Iterations from which it was restarted."""

    broken_lines: int = 0
    """Lines of its metrics.jsonl that cannot be read, and were skipped."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that are averaged to one curve."""

    label: str
    runs: tuple[RunCurves, ...]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Mean and standard deviation over runs; NaN where no run has a value. Shape (points,) each."""

    x: np.ndarray
    mean: np.ndarray
    std: np.ndarray


def find_runs(places: Sequence[str], log_root: str = "logs") -> list[Path]:
    """Expand run directories, folders of run directories, and tasks to run directories, each once, without links."""
    found: dict[Path, None] = {}
    for place in places:
        found |= dict.fromkeys(run.resolve() for run in _find_in_folder(place) or _find_of_task(place, log_root))
    return list(found)


def _find_in_folder(place: str) -> list[Path]:
    folder = Path(place)
    if (folder / METRICS_FILE).is_file():
        return [folder]
    runs = sorted(path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{METRICS_FILE}"))
    if folder.is_dir() and not runs:
        raise RequestError(f"{place}: holds no run")
    return runs


def _find_of_task(place: str, log_root: str) -> list[Path]:
    try:
        task = resolve_task_name(place)
    except RequestError as error:
        raise RequestError(f"{place}: no such run directory, and no task ({error})") from error
    runs = find_task_runs(RunSearch.for_task(task, log_root))
    found = [run_dir for run_dir in runs if (run_dir / METRICS_FILE).is_file()]
    if not found:
        raise RequestError(f"{place}: no run of this task below {log_root} has metrics")
    return found[::-1]


def load_curves(run_dir: Path) -> RunCurves:
    """Read a run. It may still be running, may have been killed in the middle of a line, or may have been restarted."""
    lines = read_lines(run_dir)
    rows, restarts = parse_metrics(lines)
    try:
        params = {name: load_params(run_dir, name) for name in ("env", "agent", "launch")}
        settings = _comparable(params | {"learner": to_plain(read_learner(run_dir))})
    except (RequestError, LookupError, TypeError, AttributeError):
        settings = {"run": run_dir.name}  # a run with unknown settings gets a separate curve
    return RunCurves(name=run_dir.name, rows=rows, settings=settings, restarts=restarts, broken_lines=lines.skipped)


def _comparable(params: dict[str, Any]) -> dict[str, Any]:
    """Flatten the settings that decide what a run learns, without its seed, its directory and its length."""
    launch = params["launch"]
    task, file = launch["task"], launch.get("task_file")
    run = {key: launch["run"].get(key) for key in ("num_envs", "num_envs_total", "engine", "load", "load_critic")}
    if run["engine"] == "auto" and "robot" in params["env"]:  # an external environment has no engine
        run["engine"] = resolve_engine("auto", launch["plan"]["ranks"][0]["device"])
    kept = {
        "task": task if file is None else f"{Path(file).resolve()}:{task.rpartition(':')[2]}",  # however it was spelled
        "run": run,
        "num_ranks": len(launch["plan"]["ranks"]),
        "learner": params["learner"],
        "env": params["env"],
        "agent": params["agent"],
    }
    return _flatten("", kept)


def _flatten(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {leaf: item for key, part in value.items() for leaf, item in _flatten(f"{name}.{key}", part).items()}
    return {name.removeprefix("."): value}


def group_runs(runs: Sequence[RunCurves]) -> list[Group]:
    """Group runs with equal settings, and label each group by the settings that differ; pure."""
    groups: list[list[RunCurves]] = []
    for run in runs:
        mine = next((group for group in groups if group[0].settings == run.settings), None)
        if mine is None:
            groups.append([run])
        else:
            mine.append(run)
    keys = dict.fromkeys(key for group in groups for key in group[0].settings)
    differing = [key for key in keys if len({repr(group[0].settings.get(key)) for group in groups}) > 1]
    return [Group(label=_label(group, differing), runs=tuple(group)) for group in groups]


def _label(group: list[RunCurves], differing: list[str]) -> str:
    settings = group[0].settings
    if "task" in differing or not differing:
        task = settings.get("task", group[0].name)  # settings of different tasks differ too much to list
        name = str(shorten(Path(task)))
    else:
        named = [f"{key.removeprefix('run.')} {settings.get(key)}" for key in differing[:_MAX_LABELS]]
        name = ", ".join([*named, *(["…"] if len(differing) > _MAX_LABELS else [])])
    return f"{name} ({len(group)} runs)" if len(group) > 1 else name


def resolve_metrics(wanted: Sequence[str], runs: Sequence[RunCurves]) -> list[str]:
    """Expand names and patterns such as reward/* to metrics that at least one run has; pure."""
    there = dict.fromkeys(
        key for run in runs for row in run.rows for key, value in row.items() if isinstance(value, int | float)
    )
    found: dict[str, None] = {}
    for pattern in wanted:
        matching = fnmatch.filter(there, pattern)
        if not matching:
            raise RequestError(f"--y {pattern}: no run has such numbers{suggest(pattern, sorted(there))}")
        found |= dict.fromkeys(matching)
    if not found:
        raise RequestError("--y: give at least one metric, such as mean_reward")
    return list(found)


def x_values(rows: Rows, axis: XAxis) -> np.ndarray:
    """Return the position of each iteration on an axis: iterations, env steps of the whole job, or training seconds."""
    if axis == "wall-time":
        return np.array(elapsed_s(rows))
    key = "iteration" if axis == "iterations" else "env_steps_total"
    return np.array([_number(row.get(key)) for row in rows])


def elapsed_s(rows: Rows) -> list[float]:
    """Return the seconds of training until the end of each iteration; starting and saving do not count."""
    names = ("collect_time_s", "learn_time_s", "wait_time_s")
    return list(accumulate(float(np.nansum([_number(row.get(name)) for name in names])) for row in rows))


def average(runs: Sequence[RunCurves], metric: str, axis: XAxis) -> Curve:
    """Average a metric over several runs; pure.

    Each position on the axis where some run has a value gets the mean of all runs that cover it. Runs of different
    lengths, or whose iterations take different times, are interpolated between their own values.
    """
    points = []
    for run in runs:
        values = np.array([_number(row.get(metric)) for row in run.rows])
        at = x_values(run.rows, axis)
        known = np.isfinite(values) & np.isfinite(at)
        points.append((at[known], values[known]))
    x = np.unique(np.concatenate([at for at, _ in points]))
    table = np.full((len(points), x.size), np.nan)
    for row, (at, values) in zip(table, points, strict=True):
        if at.size:
            row[:] = np.interp(x, at, values, left=np.nan, right=np.nan)
    count = np.isfinite(table).sum(axis=0)
    mean = np.nansum(table, axis=0) / count
    std = np.sqrt(np.nansum((table - mean) ** 2, axis=0) / count)
    return Curve(x=x, mean=mean, std=std)


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else np.nan
    except OverflowError:  # an integer of JSON may have thousands of digits
        return np.nan


def check_out(out: Path) -> None:
    """Check, before any work, that the picture can be drawn and written."""
    require("plot", "plot", "matplotlib")
    if out.suffix not in SUFFIXES:
        raise RequestError(f"--out {out}: give a name that ends in {' or '.join(SUFFIXES)}")
    check_writable("--out", out)


def draw_curves(
    groups: Sequence[Group], metrics: Sequence[str], axis: XAxis, out: Path, *, title: str | None = None
) -> None:
    """Write what `make_figure` returns to a PNG or SVG file."""
    figure = make_figure(groups, metrics, axis, title=title)
    with saying_where("--out", out), replacing(out.resolve()) as file:  # a link to a picture stays one
        figure.savefig(file, format=out.suffix[1:], dpi=100)


def make_figure(groups: Sequence[Group], metrics: Sequence[str], axis: XAxis, *, title: str | None = None) -> "Figure":
    """Draw one set of axes per metric, and one curve per group: the mean of its runs, one standard deviation around it.

    Dotted lines mark restarts, in groups of one run.
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
                continue
            for run in group.runs:
                for x, row in zip(x_values(run.rows, axis), run.rows, strict=True):
                    if row["iteration"] in run.restarts:
                        axes.axvline(x, color=line.get_color(), alpha=0.5, linestyle=":")
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
