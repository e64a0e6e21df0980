"""The command list-tasks."""

import argparse

from mjtrain.catalog import list_tasks


def main() -> None:
    """Print the registered tasks, one per line with the factory behind it."""
    argparse.ArgumentParser(prog="list-tasks", description="Print the tasks that train knows by name.").parse_args()
    entries = list_tasks()
    width = max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        print(f"{entry.name:<{width}}  {entry.value}")
    if not entries:
        print("no tasks are installed; mjtrain[tasks] brings the built-in ones")


if __name__ == "__main__":
    main()
