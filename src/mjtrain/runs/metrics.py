"""The metrics of a run: the lines of its metrics.jsonl."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from mjtrain.runtime.event_log import MetricLines, read_lines

Rows = list[dict[str, Any]]
"""One per iteration, ascending."""


def read_metrics(run_dir: Path) -> tuple[Rows, tuple[int, ...]]:
    """Read a run's metrics.jsonl, which may be missing; see `parse_metrics`."""
    return parse_metrics(read_lines(run_dir))


def parse_metrics(lines: Iterable[str | bytes] | MetricLines) -> tuple[Rows, tuple[int, ...]]:
    """Parse lines of metrics.jsonl; pure.

    Returns:
        One row per iteration, ascending, without those that a restart repeated; and the iterations from which the run
        was restarted.
    """
    rows: Rows = []
    restarts = []
    for row in lines if isinstance(lines, MetricLines) else MetricLines(lines):
        if "event" in row:
            if row["event"] == "restart" and isinstance(row.get("iteration"), int):
                restarts.append(row["iteration"])
            continue
        while rows and rows[-1]["iteration"] >= row["iteration"]:
            rows.pop()
        rows.append(row)
    return rows, tuple(restarts)


def to_arrays(rows: Rows) -> dict[str, np.ndarray]:
    """Return the numbers of metrics by their keys.

    Returns:
        For each key an array of shape (iterations,), NaN where an iteration has no number. Lists of numbers, such as
        one for each rank, become (iterations, size). Keys that never hold numbers are left out.
    """
    arrays = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(key) for row in rows]
        sizes = {len(value) if isinstance(value, list) else None for value in values if value is not None}
        if len(sizes) != 1:
            continue  # never a number, or of different sizes
        (size,) = sizes
        missing = np.nan if size is None else [np.nan] * size
        try:
            arrays[key] = np.array([missing if value is None else value for value in values], dtype=float)
        except (TypeError, ValueError, OverflowError):
            continue
    return arrays
