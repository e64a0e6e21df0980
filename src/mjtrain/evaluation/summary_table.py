"""The summary of `play` as a table on the terminal."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mjtrain.runtime.errors import count
from mjtrain.runtime.files import shorten
from mjtrain.runtime.standard_streams import printable

_MOST_ROWS = 20
"""Parts of a reference that the table shows; where there are more, those in which most episodes failed."""


def print_summary(report: dict[str, Any]) -> None:
    """Print a report of `play` on standard output."""
    table = Table()
    table.add_column("", no_wrap=True)
    for heading in ("mean", "std", "min", "max"):
        table.add_column(heading, justify="right")
    table.add_row("return", *_numbers(report["reward"]))
    table.add_row("episode length, env steps", *_numbers(report["length"]))
    table.add_section()
    for name, spread in report["reward_terms"].items():
        table.add_row(printable(f"reward/{name}"), *_numbers(spread))
    for kind, spreads in (("error", report["errors"]), ("estimate", report["estimates"])):
        if spreads:
            table.add_section()
        for name, spread in spreads.items():
            unit = f", {spread['unit']}" if spread["unit"] else ""
            table.add_row(printable(f"{kind}/{name}{unit}"), *_numbers(spread))
    if report["successes"]:
        table.add_section()
    for name, spread in report["successes"].items():
        counted = spread["measure"] == "count"
        numbers = _numbers(spread) if counted else [f"{100 * spread['mean']:.1f} %", "", "", ""]
        table.add_row(printable(f"success/{name}"), *numbers)
    table.add_section()
    for name, cause in report["terminations"].items():
        table.add_row(printable(f"termination/{name}"), f"{100 * cause['fraction']:.1f} %", "", "", "")
    console = Console(highlight=False, markup=False, emoji=False)
    title = f"{report['task']}: {count(report['episodes'], 'episode')} of {_name_policy(report)}"
    console.print(printable(title), soft_wrap=True)
    console.print(_caption(report), soft_wrap=True)
    console.print(table)
    if "by_time" in report:
        console.print(_tabulate_by_time(report["by_time"], report["errors"]))


def print_comparison(report: dict[str, Any]) -> None:
    """Print what `play --sim-to-sim` found on standard output."""
    rows, first = report["rows"], report["rows"][0]
    # The order of the errors themselves is that of the first episodes that have them.
    units = {name: unit for name, unit in report["units"].items() if name in first["errors"]}
    table = Table()
    for heading in ("disturbed by", "simulator"):
        table.add_column(heading, no_wrap=True)
    has_one = len({name.partition("/")[0] for name in units}) == 1
    errors = [
        f"{name.partition('/')[2] if has_one else name}, {unit}".removesuffix(", ") for name, unit in units.items()
    ]
    for heading in (*errors, *first["successes"], "failed, %", "lasted, s", "wall, s"):
        table.add_column(printable(heading), justify="right")
    for number, row in enumerate(rows):
        begins = not number or rows[number - 1]["case"] != row["case"]
        if begins and number:
            table.add_section()
        values = {name: row["errors"].get(name) for name in units} | row["successes"]
        measured = {name: "" if value is None else f"{value:.3f}" for name, value in values.items()}
        measured |= {"failed": f"{100 * row['failed']:.1f}", "": f"{row['length_s']:.1f}"}
        marked = [f"{text} !" if name in row["breaks"] else text for name, text in measured.items()]
        table.add_row(row["case"] if begins else "", row["simulator"], *marked, f"{row['wall_s']:.1f}")
    console = Console(highlight=False, markup=False, emoji=False)
    episodes = count(report["episodes"], "episode")
    console.print(printable(f"{report['task']}: {episodes} each of {_name_policy(report)}"), soft_wrap=True)
    console.print(table)
    console.print(f"! {report['rule']}", soft_wrap=True)


def _name_policy(report: dict[str, Any]) -> str:
    policy = report["policy"]
    if report["checkpoint"] is None:
        return f"{policy} actions"
    # The weights of a shared policy lie in a cache, so it is named by its place.
    return str(shorten(Path(report["checkpoint"]))) if policy == "trained" else policy


def _caption(report: dict[str, Any]) -> str:
    kept = [name for name in ("noise", "pushes", "randomization") if report[name]]
    return (
        f"{count(report['num_envs'], 'environment')} x {report['episodes_per_env']}, seed {report['seed']}, "
        f"{report['engine']} engine, {'with ' + ' and '.join(kept) if kept else 'without noise and pushes'}"
    )


def _tabulate_by_time(rows: list[dict[str, Any]], errors: dict[str, Any]) -> Table:
    """Say in which parts of the reference episodes failed, and how large the first error of the command was there."""
    units = {name.rpartition("/")[2]: spread["unit"] for name, spread in errors.items()}
    worst = sorted(rows, key=lambda row: -row["failed"])[:_MOST_ROWS]
    names = list(dict.fromkeys(name for row in rows for name in row["errors"]))[:1]
    left_out = f"the {_MOST_ROWS} of {len(rows)} parts in which most episodes failed"
    table = Table(caption=left_out if len(rows) > _MOST_ROWS else None)
    table.add_column("reference, s", no_wrap=True)
    for heading in ("episodes", "failed", *(f"{name}, {units[name]}" for name in names)):
        table.add_column(printable(heading), justify="right")
    for row in (row for row in rows if row in worst):
        means = [f"{row['errors'][name]:.3f}" if name in row["errors"] else "" for name in names]
        span = f"{row['clip']} {row['begin_s']:.2f} to {row['end_s']:.2f}"
        table.add_row(printable(span), str(row["episodes"]), str(row["failed"]), *means)
    return table


def _numbers(spread: dict[str, Any]) -> list[str]:
    return [f"{spread[key]:.3f}" for key in ("mean", "std", "min", "max")]
