"""The summary of `play` as a table on the terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table


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
        table.add_row(f"reward/{name}", *_numbers(spread))
    for kind, spreads in (("error", report["errors"]), ("estimate", report["estimates"])):
        if spreads:
            table.add_section()
        for name, spread in spreads.items():
            unit = f", {spread['unit']}" if spread["unit"] else ""
            table.add_row(f"{kind}/{name}{unit}", *_numbers(spread))
    if report["successes"]:
        table.add_section()
    for name, spread in report["successes"].items():
        counted = spread["measure"] == "count"
        numbers = _numbers(spread) if counted else [f"{100 * spread['mean']:.1f} %", "", "", ""]
        table.add_row(f"success/{name}", *numbers)
    table.add_section()
    for name, cause in report["terminations"].items():
        table.add_row(f"termination/{name}", f"{100 * cause['fraction']:.1f} %", "", "", "")
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(_title(report), soft_wrap=True)
    console.print(_caption(report), soft_wrap=True)
    console.print(table)


def _title(report: dict[str, Any]) -> str:
    policy = report["checkpoint"] or f"{report['policy']} actions"
    return f"{report['task']}: {report['episodes']} episodes of {policy}"


def _caption(report: dict[str, Any]) -> str:
    kept = [name for name in ("noise", "pushes", "randomization") if report[name]]
    return (
        f"{report['num_envs']} environments x {report['episodes_per_env']}, seed {report['seed']}, "
        f"{report['engine']} engine, {'with ' + ' and '.join(kept) if kept else 'without noise and pushes'}"
    )


def _numbers(spread: dict[str, Any]) -> list[str]:
    return [f"{spread[key]:.3f}" for key in ("mean", "std", "min", "max")]
