"""What happens to a run between iterations, in its metrics.jsonl."""

import json
import os
from pathlib import Path
from typing import Any


def write_event(run_dir: Path, event: str, **fields: Any) -> None:
    """Append a line about something that happened between iterations to a run's metrics.jsonl."""
    path = run_dir / "metrics.jsonl"
    with path.open("a+b") as file:
        torn = False
        if file.seek(0, os.SEEK_END) > 0:
            file.seek(-1, os.SEEK_END)
            torn = file.read(1) != b"\n"
        file.write((("\n" if torn else "") + json.dumps({"event": event, **fields}) + "\n").encode())


def last_iteration(run_dir: Path) -> int:
    """Return the last iteration in a run's metrics.jsonl; 0 if there is none."""
    path = run_dir / "metrics.jsonl"
    last = 0
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            last = json.loads(line).get("iteration", last) if '"event"' not in line else last
        except json.JSONDecodeError:
            continue  # cut short by the failure
    return last
