"""The command init."""

from dataclasses import dataclass
from pathlib import Path

from mjtrain.cli.command import command, take_first
from mjtrain.cli.parsing import parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """Where a project is written."""

    folder: str = "."
    """Folder in which the project's own folder is made."""


@command("init")
def main(argv: list[str]) -> None:
    """Run the command; the process ends with status 0, or 2 if the request was wrong."""
    name, args = take_first(argv, "NAME", "the name comes first, as in mjtrain init my_robots")
    options = parse(
        Options,
        args,
        prog=f"mjtrain init {name}",
        description="Write a project to begin with: a package with a robot, a small task that list-tasks knows once "
        "the package is installed, a test and a README.",
    )
    from mjtrain.tools.new_project import write_project

    folder, task = write_project(name, Path(options.folder))
    print(f"{folder} is a project with the task {task}; its README.md says more. With uv:\n")
    print(f"  cd {folder}\n  uv run train {task}")
