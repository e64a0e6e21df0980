"""Metrics of runs as curves: read, grouped over seeds, and laid over each other."""

import difflib
import fnmatch
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mjtrain.errors import RequestError
from mjtrain.runs.run_dir import load_params

Rows = list[dict[str, Any]]
XAxis = Literal["iterations", "env-steps", "wall-time"]

_MAX_LABELS = 3
"""Differing settings that a label names at most."""


@dataclass(frozen=True, kw_only=True)
class RunCurves:
    """The numbers of one run."""

    name: str
    """How to call the run."""

    rows: Rows
    """One per iteration, ascending."""

    settings: dict[str, Any]
    """What it was trained with, by dotted name; runs of equal settings differ in their seeds only."""

    restarts: tuple[int, ...] = ()
    """Iterations from which it was started again."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that make one curve."""

    label: str
    runs: tuple[RunCurves, ...]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Mean and standard deviation over runs; NaN where no run has a value. Shape (points,) each."""

    x: np.ndarray
    mean: np.ndarray
    std: np.ndarray


def find_runs(places: Sequence[str]) -> list[Path]:
    """Turn run directories, and folders that hold some, into run directories.

    Raises:
        RequestError: There is no run in a place.
    """
    found: dict[Path, None] = {}
    for place in places:
        folder = Path(place)
        runs = (
            [folder]
            if (folder / "metrics.jsonl").is_file()
            else sorted(path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/metrics.jsonl"))
        )
        if not runs:
            raise RequestError(f"{place}: {'holds no run' if folder.is_dir() else 'no such run directory'}")
        found |= dict.fromkeys(run.absolute() for run in runs)
    return list(found)


def load_curves(run_dir: Path) -> RunCurves:
    """Read a run, which may be going on, may have been killed in the middle of a line, or started again.

    Raises:
        RequestError: It has no iteration yet.
    """
    rows, restarts = parse_metrics((run_dir / "metrics.jsonl").read_text(errors="replace").splitlines())
    if not rows:
        raise RequestError(f"{run_dir}: has no iteration yet")
    try:
        settings = _comparable({name: load_params(run_dir, name) for name in ("env", "agent", "launch")})
    except RequestError:
        settings = {"run": run_dir.name}  # a run whose settings nobody knows is like no other
    return RunCurves(name=run_dir.name, rows=rows, settings=settings, restarts=restarts)


def parse_metrics(lines: Iterable[str]) -> tuple[Rows, tuple[int, ...]]:
    """Parse lines of metrics.jsonl; pure.

    Returns:
        A row per iteration, ascending, the newest of each: what was done after the checkpoint to which a run went back
        does not count. And the iterations from which it was started again.
    """
    rows: Rows = []
    restarts = []
    for line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # torn
        if "event" in row:
            if row["event"] == "restart":
                restarts.append(row["iteration"])
            continue
        while rows and rows[-1]["iteration"] >= row["iteration"]:
            rows.pop()
        rows.append(row)
    return rows, tuple(restarts)


def _comparable(params: dict[str, Any]) -> dict[str, Any]:
    """Flatten what decides what a run learns; neither its seed nor where it went nor how long it lasted."""
    launch = params["launch"]
    amounts = {key: launch["run"].get(key) for key in ("num_envs", "num_envs_total", "engine", "load")}
    kept = {
        "task": launch["task"],
        "run": amounts,
        "num_ranks": len(launch["plan"]["ranks"]),
        "env": params["env"],
        "agent": params["agent"],
    }
    return _flatten("", kept)


def _flatten(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {leaf: item for key, part in value.items() for leaf, item in _flatten(f"{name}.{key}", part).items()}
    return {name.removeprefix("."): value}


def group_runs(runs: Sequence[RunCurves]) -> list[Group]:
    """Put runs of equal settings together, and label each group by what sets it apart; pure."""
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
        name = settings.get("task", group[0].name)  # settings of other tasks differ in too much to say
    else:
        named = [f"{key.removeprefix('run.')} {settings.get(key)}" for key in differing[:_MAX_LABELS]]
        name = ", ".join([*named, *(["…"] if len(differing) > _MAX_LABELS else [])])
    return f"{name} ({len(group)} seeds)" if len(group) > 1 else name


def resolve_metrics(wanted: Sequence[str], runs: Sequence[RunCurves]) -> list[str]:
    """Turn names and patterns such as reward/* into metrics that some run has numbers of; pure.

    Raises:
        RequestError: There is none of that name.
    """
    there = dict.fromkeys(
        key for run in runs for row in run.rows for key, value in row.items() if isinstance(value, int | float)
    )
    found: dict[str, None] = {}
    for pattern in wanted:
        matching = fnmatch.filter(there, pattern)
        if not matching:
            similar = difflib.get_close_matches(pattern, there, n=3) or sorted(there)
            raise RequestError(f"--y {pattern}: no run has such numbers; there are {', '.join(similar)}")
        found |= dict.fromkeys(matching)
    return list(found)


def x_values(rows: Rows, axis: XAxis) -> np.ndarray:
    """Return where each iteration lies on an axis: iterations, env steps of the whole job, or seconds of training."""
    if axis == "wall-time":
        return np.array(elapsed_s(rows))
    key = "iteration" if axis == "iterations" else "env_steps_total"
    return np.array([row[key] for row in rows], dtype=float)


def elapsed_s(rows: Rows) -> list[float]:
    """Return the seconds of training until the end of each iteration; starting and saving do not count."""
    return list(accumulate(row["collect_time_s"] + row["learn_time_s"] + row["wait_time_s"] for row in rows))


def average(runs: Sequence[RunCurves], metric: str, axis: XAxis) -> Curve:
    """Lay a metric of several runs over each other; pure.

    Every place on the axis where some run has a value gets the mean of all runs that are there already and still:
    runs of different lengths, or whose iterations take different times, are interpolated between their own values.
    """
    points = []
    for run in runs:
        values = np.array([_number(row.get(metric)) for row in run.rows])
        known = np.isfinite(values)
        points.append((x_values(run.rows, axis)[known], values[known]))
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
    return float(value) if isinstance(value, int | float) else np.nan
