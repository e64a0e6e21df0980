"""The command list-tasks."""

import json
import shutil
import sys
import textwrap
from dataclasses import asdict, dataclass

from mjtrain.cli.command import command
from mjtrain.env.catalog import list_tasks, summarise_task


@dataclass(frozen=True, kw_only=True)
class Options:
    """List the installed tasks: what each one is, and how long it trains."""

    json: bool = False
    """Print JSON, with the factory and the package of each task."""


@command("list-tasks")
def main(args: list[str]) -> None:
    """Run the command; the process ends with status 0, or 2 if the request was wrong."""
    options = Options(json=args == ["--json"])
    if args and not options.json:
        from mjtrain.cli.parsing import parse  # tyro takes longer to import than this command to run

        options = parse(Options, args, prog="list-tasks", description=Options.__doc__)
    tasks = [summarise_task(entry) for entry in list_tasks()]
    if options.json:
        print(json.dumps([asdict(task) for task in tasks], indent=2))
        return
    if not tasks:
        print("no tasks are installed; pip install 'mjtrain[tasks]' brings the built-in ones")
    indent = max((len(task.name) for task in tasks), default=0) + 2
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for task in tasks:
        line = f"{task.name:<{indent}}{'; '.join(filter(None, (task.summary, task.trains_in)))}".rstrip()
        wraps = columns is not None and columns >= 2 * indent
        print(textwrap.fill(line, columns, subsequent_indent=" " * indent) if wraps and columns else line)
