"""The metrics.jsonl of a run: reading its lines, and the events between iterations."""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from mjtrain.runtime.errors import INJECTED, OutsideError, RequestError, first_line_of
from mjtrain.runtime.files import read_regular

METRICS_FILE = "metrics.jsonl"


@dataclass
class MetricLines:
    """Iterates over lines of metrics.jsonl as dictionaries and skips the broken ones."""

    lines: Iterable[str | bytes]
    """One iteration or event each."""

    skipped: int = 0
    """Complete lines skipped so far. A last line without a line break does not count: it may still be written."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self.lines:
            row = parse_line(line)
            if row is not None:
                yield row
            elif line[-1:] in ("\n", b"\n"):
                self.skipped += 1


def parse_line(line: str | bytes) -> dict[str, Any] | None:
    """Return an iteration (with its number) or event (with its name); None for a line that is broken or cut short."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    return row if (isinstance(row["event"], str) if "event" in row else type(row.get("iteration")) is int) else None


def read_lines(run_dir: Path) -> MetricLines:
    """Read a run's metrics.jsonl; a run without one has no lines."""
    try:
        return MetricLines(read_regular(run_dir / METRICS_FILE).splitlines(keepends=True))
    except FileNotFoundError:
        return MetricLines(())


def describe_skipped(run_dir: Path, count: int) -> str:
    """Begin a sentence about the broken lines of a run's metrics.jsonl."""
    return f"{run_dir / METRICS_FILE}: {count} broken line{'s' if count > 1 else ''}"


def write_event(run_dir: Path, event: str, **fields: Any) -> None:
    """Append a line about something that happened between iterations to a run's metrics.jsonl."""
    with (run_dir / METRICS_FILE).open("a+b", buffering=0) as file:
        append_line(file, {"event": event, **fields})


def append_line(file: FileIO, row: dict[str, Any]) -> None:
    """Append a line to a file that is open for reading and appending; an OSError leaves the file unchanged."""
    size = file.seek(0, os.SEEK_END)
    is_torn = False  # whether the line before was cut short
    if size > 0:
        file.seek(-1, os.SEEK_END)
        is_torn = file.read(1) != b"\n"
    line = (("\n" if is_torn else "") + json.dumps(row) + "\n").encode()
    written = 0
    try:
        while written < len(line):
            written += file.write(line[written:])
    except OSError:
        file.truncate(size)
        raise


@contextlib.contextmanager
def end_recorded(run_dir: Path, is_ours: Callable[[], bool] = lambda: True) -> Iterator[dict[str, Any]]:
    """Record the end of a run as an event: how the with block is left, unless the request was refused.

    Yields a dictionary that is added to the event of an end without an error. A full disk loses only the event.
    """
    more: dict[str, Any] = {}
    try:
        yield more
    except RequestError:
        raise
    except BaseException as error:
        if is_ours():
            _write_end(run_dir, _describe_end(error))
        raise
    if is_ours():
        _write_end(run_dir, {"how": "done", **more})


def _write_end(run_dir: Path, end: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        write_event(run_dir, "end", **end, time=time.time())


def _describe_end(error: BaseException) -> dict[str, Any]:
    """Say how a run ended that ended with this exception, see `launcher.ipc.signals.leave`."""
    if isinstance(error, KeyboardInterrupt):
        return {"how": "stopped", "signal": "SIGINT"}
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128:
        return {"how": "stopped", "signal": signal.Signals(error.code - 128).name}
    text = first_line_of(error)
    says_all = isinstance(error, OutsideError) or type(error).__name__ in ("RankFailedError", "NotSavedError")
    name = "" if says_all else type(error).__name__
    cause = ": ".join(filter(None, (name, text)))
    return {"how": "failed", "cause": cause + find_injected(error)}


def find_injected(error: BaseException) -> str:
    """Return what the launcher's note on a rank's exception says of injected faults; empty without one."""
    notes = "" if INJECTED in first_line_of(error) else "\n".join(getattr(error, "__notes__", ()))
    return next(iter(re.findall(rf"^FAILED: .*(; {INJECTED}.*)$", notes, re.MULTILINE)), "")


def mark_injected(run_dir: Path) -> str:
    """Return words for a cause, if faults were injected (--inject-fault) since the run was last started; else none."""
    faults: list[str] = []
    for row in read_lines(run_dir):
        if row.get("event") in ("restart", "end"):
            faults.clear()
        elif row.get("event") == "fault":
            faults.append(str(row.get("fault")))
    return f"; {INJECTED}{' and '.join(dict.fromkeys(faults))}" if faults else ""
