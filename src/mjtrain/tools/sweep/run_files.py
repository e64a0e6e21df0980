"""What a run of a trial leaves below the sweep's folder."""

import contextlib
import glob
import itertools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjtrain.runs.checkpoint import find_valid_checkpoint, list_checkpoints
from mjtrain.runs.claim import is_claimed
from mjtrain.runs.history import summarise_run
from mjtrain.runs.metrics import Rows, read_metrics
from mjtrain.runtime.event_log import METRICS_FILE, MetricLines


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The files of a run with this name, however often it was started."""

    log_root: Path
    name: str

    def find_all(self) -> list[Path]:
        """Return its run directories; several after starts that were killed before they saved anything."""
        return list(self.log_root.glob(f"*/*_{glob.escape(self.name)}"))

    @property
    def folder(self) -> Path | None:
        """Its newest run directory; None if there is none."""
        return max(self.find_all(), key=lambda path: path.name, default=None)

    def read(self) -> Rows:
        """Return its metrics, a row per iteration, as far as it came."""
        folder = self.folder
        return [] if folder is None else read_metrics(folder)[0]

    def find_end(self) -> tuple[str, str]:
        """Return its state, and what there is to say about it, as `mjtrain runs` lists them; empty without a run."""
        folder = self.folder
        summary = None if folder is None else summarise_run(folder)
        return ("", "") if summary is None else (summary.state, summary.detail)

    def remove_stillborn(self) -> None:
        """Remove the directories of starts that were killed before they saved anything.

        One whose checkpoints are all damaged gets another name: its metrics, and what can be saved of it, stay.
        """
        for run_dir in self.find_all():
            if find_valid_checkpoint(run_dir)[0] is not None or is_claimed(run_dir):
                continue
            if list_checkpoints(run_dir) or any(run_dir.glob("model_*.damaged*")):
                names = (run_dir.with_name(f"{run_dir.name}.damaged-{n}") for n in itertools.count(1))
                with contextlib.suppress(OSError):
                    run_dir.rename(next(path for path in names if not path.exists()))
            else:
                shutil.rmtree(run_dir, ignore_errors=True)


class MetricFollower:
    """Reads the lines of a run's metrics.jsonl as they are written."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._path: Path | None = None
        self._inode = self._done = 0
        """Which file was read, and how many bytes of it."""

    def read(self) -> list[dict[str, Any]]:
        """Return the iterations that are new; after a resume some of them may be known already."""
        if self._path is None:
            if (folder := self._files.folder) is None:
                return []
            self._path = folder / METRICS_FILE
        try:
            with self._path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:  # a resumed run has rewritten it
                    self._inode, self._done = inode, 0
                file.seek(self._done)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._done += len(whole)
        return [row for row in MetricLines(whole.splitlines()) if "event" not in row]
