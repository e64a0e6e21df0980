"""The best checkpoint of a run, and where that is recorded: {run}/best.json."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from mjtrain.runs.checkpoint import checkpoint_path
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import read_regular, write_whole

BEST = "best"
"""What stands for the best checkpoint where a name of a checkpoint is asked for."""

BEST_FILE = "best.json"
"""Name of the record in a run directory, and in object storage."""


@dataclass(frozen=True, kw_only=True)
class BestCheckpoint:
    """The best checkpoint of a run so far."""

    metric: str
    """Key in metrics.jsonl by which it is the best."""

    value: float
    iteration: int

    def to_json(self) -> bytes:
        """Return the content of best.json."""
        return json.dumps(asdict(self), indent=2).encode() + b"\n"


def parse_best(content: bytes) -> BestCheckpoint | None:
    """Read the content of best.json; None if it is damaged."""
    try:
        best = BestCheckpoint(**json.loads(content))
    except (ValueError, TypeError, RecursionError):
        return None
    return best if isinstance(best.iteration, int) and isinstance(best.value, int | float) else None


def write_best(run_dir: Path, best: BestCheckpoint) -> None:
    """Record the best checkpoint of a run, atomically."""
    write_whole(run_dir / BEST_FILE, best.to_json())


def read_best(run_dir: Path) -> BestCheckpoint | None:
    """Return what is recorded about a run, if its file is still there; None if there is none."""
    try:
        best = parse_best(read_regular(run_dir / BEST_FILE))
    except OSError:
        return None
    return best if best is not None and checkpoint_path(run_dir, best.iteration).is_file() else None


def find_best(run_dir: Path, flag: str) -> Path:
    """Return the file of a run's best checkpoint."""
    best = read_best(run_dir)
    if best is None:
        raise RequestError(
            f"{flag}: no best checkpoint is recorded in {run_dir}; train with --eval-interval or --best-metric, or "
            "name a checkpoint such as model_300.pt"
        )
    return checkpoint_path(run_dir, best.iteration)
