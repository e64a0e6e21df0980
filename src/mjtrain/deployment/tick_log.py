"""What is remembered of each control period, and what it amounts to."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mjtrain.runtime.errors import RequestError


class TickLog:
    """Rows of a deployment, in memory, and as JSON lines in a file when it ends.

    They are written at the end: a slow disk must not make a tick late.
    """

    def __init__(self, file: str | None) -> None:
        """Check that the file can be written.

        Raises:
            RequestError: It cannot.
        """
        self._file = None if file is None else Path(file)
        self.rows: list[dict[str, Any]] = []
        if self._file is not None:
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._file.write_text("")
            except OSError as error:
                raise RequestError(f"--log {file}: cannot be written ({error.strerror or error})") from error

    def add(self, **row: Any) -> None:
        """Remember a control period."""
        self.rows.append(row)

    def write(self) -> None:
        """Write the file, if one was named."""
        if self._file is not None:
            with self._file.open("w") as out:
                out.writelines(json.dumps(_plain(row)) + "\n" for row in self.rows)


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return mean, 99th percentile and maximum; None of nothing."""
    if not len(values):
        return None
    array = np.asarray(values, dtype=float)
    return {
        "mean": round(float(array.mean()), 4),
        "p99": round(float(np.percentile(array, 99)), 4),
        "max": round(float(array.max()), 4),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return np.asarray(value).round(6).tolist() if isinstance(value, np.ndarray) else value
