"""The command runs."""

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mjtrain.cli.command import command
from mjtrain.cli.parsing import parse
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.event_log import describe_skipped
from mjtrain.runtime.standard_streams import printable

if TYPE_CHECKING:
    from mjtrain.runs.history import RunSummary


@dataclass(frozen=True, kw_only=True)
class Options:
    """List runs, the newest first.

    Listed are when they were started, how many iterations they have, the mean return of the last one, how they ended,
    and their checkpoints.
    """

    log_root: str = "logs"
    """Folder below which runs live."""

    json: bool = False
    """Print JSON instead of a table."""


@command("runs")
def main(argv: list[str]) -> None:
    """Run the command; the process ends with status 0, or 2 if the request was wrong."""
    task, args = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else (None, argv)
    options = parse(Options, args, prog="mjtrain runs [TASK]", description=Options.__doc__)
    from mjtrain.env.catalog import resolve_task_name
    from mjtrain.runs.history import list_runs

    if task is not None and task.endswith(".py"):
        task = resolve_task_name(task)  # other names may be those of folders, and of tasks that are gone
    log_root = Path(options.log_root)
    if not log_root.is_dir():
        raise RequestError(f"--log-root {options.log_root}: {'is a file' if log_root.exists() else 'no such folder'}")
    runs = list_runs(log_root, task)
    for run in runs:
        if run.broken_lines:
            line = f"warning: {describe_skipped(run.run_dir, run.broken_lines)} skipped"
            print(printable(line), file=sys.stderr)
    if options.json:
        print(json.dumps([run.to_plain() for run in runs], indent=2))
    elif runs:
        head, *_ = lines = format_table(runs)
        # A narrow terminal wraps lines up to the state; after it comes the cause of a failure, which may be long.
        least = len(head) + len("stopped by SIGTERM")
        columns = max(shutil.get_terminal_size().columns, least) if sys.stdout.isatty() else None
        for line in lines:
            print(line[:columns])
    else:
        print(f"no run{'' if task is None else f' of {task}'} below {options.log_root}")


def format_table(runs: "list[RunSummary]") -> list[str]:
    """Format runs as the lines of a table; the column that can be long comes last."""
    rows: list[tuple[str, ...]] = [("started", "run", "iterations", "reward", "checkpoints", "state")]
    for run in runs:
        wanted = "" if run.max_iterations is None else f"/{run.max_iterations}"
        kept = "-" if run.last_checkpoint is None else f"{run.num_checkpoints}, last {run.last_checkpoint}"
        reward = "-" if run.reward is None else f"{run.reward:.2f}"
        state = (
            f"stopped by {run.detail}" if run.state == "stopped" else ": ".join(filter(None, (run.state, run.detail)))
        )
        started = run.started.replace("T", " ")
        row = (started, str(run.run_dir), f"{run.iterations}{wanted}", reward, kept, state)
        rows.append(tuple(map(printable, row)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
