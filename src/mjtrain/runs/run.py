"""A run that was trained or is being trained, opened from Python, and its metrics."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mjtrain.config import AgentConfig, EnvConfig, LearnerConfig
from mjtrain.config.limits import show
from mjtrain.env.catalog import CUSTOM
from mjtrain.runs.checkpoint import checkpoint_iteration, checkpoint_path, list_checkpoints, read_best
from mjtrain.runs.history import recorded_task
from mjtrain.runs.run_dir import load_params
from mjtrain.runs.trained_run import is_run, read_run
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.event_log import MetricLines, read_lines

Rows = list[dict[str, Any]]
"""One per iteration, ascending."""


def read_metrics(run_dir: Path) -> tuple[Rows, tuple[int, ...]]:
    """Read a run's metrics.jsonl, which may be missing; see `parse_metrics`."""
    return parse_metrics(read_lines(run_dir))


def parse_metrics(lines: Iterable[str | bytes] | MetricLines) -> tuple[Rows, tuple[int, ...]]:
    """Return a row per iteration, ascending, without those that a restart repeated, and the iterations of restarts."""
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


@dataclass(frozen=True, kw_only=True)
class RecordedConfig:
    """What a run recorded below params/."""

    env: EnvConfig | Any
    """The MDP, whose robot is the run's own copy; or someone else's environment."""

    agent: AgentConfig
    """Networks, algorithm and rollout."""

    learner: LearnerConfig
    """Which library learned, and its own settings."""

    launch: dict[str, Any]
    """Content of params/launch.yaml: task, run, launch, plan, package versions."""


class Run:
    """A run directory. What changes while a run is in progress, metrics and checkpoints, is read again each time."""

    def __init__(self, path: str | Path, *, trust: bool = False) -> None:
        """Open a run; nothing is read yet.

        Args:
            trust: Whether `config`, and functions that get this object, may run any code that the run names. Give it
                only for a run whose maker you trust.

        Raises:
            RequestError: It is not a run directory.
        """
        if not (isinstance(path, str | Path) and is_run(path)):
            given = path if isinstance(path, str | Path) else show(path)
            raise RequestError(f"{given}: is not a run directory (no params/ in it)")
        self.path = Path(path).absolute()
        """Its directory, absolute."""
        self.trust = trust
        """Whether code that the run names may run."""

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def task(self) -> str:
        """The task that it recorded: a name, or the path of a factory; "custom" for one made in Python."""
        return recorded_task(load_params(self.path, "launch")) or CUSTOM

    @cached_property
    def config(self) -> RecordedConfig:
        """What it recorded: env, agent, learner and launch.

        Raises:
            RequestError: It cannot be read, or a function of its terms is not there, or is not known on this machine.
        """
        found = read_run(self.path, trust=self.trust)
        return RecordedConfig(
            env=found.env, agent=found.agent, learner=found.learner, launch=load_params(self.path, "launch")
        )

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """Metrics of the whole job by key, as in metrics.jsonl; shape (iterations,) each, NaN where there is no number.

        Lists, such as busy_time_by_rank_s, have the shape (iterations, size).
        """
        return to_arrays(read_metrics(self.path)[0])

    @property
    def best_checkpoint(self) -> Path | None:
        """File of its best checkpoint, by --best-metric; None if none is recorded."""
        best = read_best(self.path)
        return None if best is None else checkpoint_path(self.path, best.iteration)

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Files of its checkpoints by iteration, ascending."""
        return {checkpoint_iteration(path): path for path in reversed(list_checkpoints(self.path))}
