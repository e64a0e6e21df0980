"""What happens to a run between iterations, in its metrics.jsonl."""

import json
from pathlib import Path
from typing import Any


def write_event(run_dir: Path, event: str, **fields: Any) -> None:
    """Append a line about something that happened between iterations to a run's metrics.jsonl."""
    path = run_dir / "metrics.jsonl"
    torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with path.open("a") as file:
        file.write(("\n" if torn else "") + json.dumps({"event": event, **fields}) + "\n")
