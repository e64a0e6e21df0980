"""The command plot."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mjtrain.cli.command import command
from mjtrain.cli.parsing import join_repeated, parse
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.event_log import describe_skipped
from mjtrain.runtime.standard_streams import printable


@dataclass(frozen=True, kw_only=True)
class Options:
    """Draw learning curves. RUN is a run directory, a folder of runs, or a task.

    Runs that differ in their seeds only become one curve: their mean, and one standard deviation around it.
    """

    x: Literal["iterations", "env-steps", "wall-time"] = "iterations"
    """What to draw against. wall-time: seconds of training, without starting and saving."""

    y: tuple[str, ...] = ("mean_reward", "mean_episode_length")
    """Keys of metrics.jsonl, or patterns such as 'reward/*' or 'success/*'."""

    out: str = "curves.png"
    """PNG or SVG file."""

    log_root: str = "logs"
    """Folder below which runs of tasks live."""


@command("plot")
def main(argv: list[str]) -> None:
    """Run the command; the process ends with status 0, or 2 if the request was wrong."""
    first_flag = next((at for at, word in enumerate(argv) if word.startswith("-")), len(argv))
    places, args = argv[:first_flag], join_repeated(argv[first_flag:], "--y")
    options = parse(Options, args, prog="plot RUN [RUN ...]", description=Options.__doc__)
    if not places:
        raise RequestError("runs come first, as in plot logs/cartpole_balance/* [options]")
    from mjtrain.tools.plotting import check_out, draw_curves, find_runs, group_runs, load_curves, resolve_metrics

    out = Path(options.out)
    check_out(out)
    found = {run_dir: load_curves(run_dir) for run_dir in find_runs(places, options.log_root)}
    runs = [run for run in found.values() if run.rows]
    if not runs:
        raise RequestError(f"{' '.join(places)}: no run has a completed iteration yet")
    for run_dir, run in found.items():
        if not run.rows:
            print(
                printable(f"warning: {run_dir}: is left out, because it has no completed iteration yet"),
                file=sys.stderr,
            )
        if run.broken_lines:
            print(printable(f"warning: {describe_skipped(run_dir, run.broken_lines)} skipped"), file=sys.stderr)
    groups = group_runs(runs)
    draw_curves(groups, resolve_metrics(options.y, runs), options.x, out)
    for group in groups:
        last = [run.rows[-1]["iteration"] for run in group.runs]
        print(f"{printable(group.label)}: to iteration {' '.join(map(str, last))}")
    print(out)
