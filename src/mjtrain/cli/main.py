"""The command mjtrain, of which all other commands are subcommands."""

import importlib
import sys
from collections.abc import Sequence

from mjtrain.cli.command import end_despite_threads, run_command
from mjtrain.runtime.errors import RequestError, suggest

COMMANDS = {
    "train": "train a policy on a task",
    "play": "measure, watch or record a trained policy",
    "init": "write a project with a task of your own",
    "list-tasks": "list the installed tasks",
    "runs": "list runs: how far they came, and how they ended",
    "plot": "draw learning curves of runs",
    "motion": "convert, inspect, show or record reference motions",
    "export": "write a policy as ONNX and TorchScript",
    "push": "share a policy: as a folder, on the Hub or in object storage",
    "pull": "copy a shared policy to a folder",
    "deploy": "run an exported policy on a robot, or on a simulated one",
    "sweep": "search for good settings with many trainings",
    "doctor": "check that machines can do what a training needs",
    "scaling": "compare a training on several numbers of ranks",
    "import-robot": "write a URDF as MJCF that can be trained",
    "check-robot": "check a robot's file without a task",
    "completion": "print a completion script for bash",
}
"""Name of each command and one line about it; the module is mjtrain.cli.{name}."""

USAGE = "mjtrain COMMAND [options]"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command named by the first argument; the exit status is that of the command.

    With the arguments of this process, the process ends afterwards although threads of a task may still run.
    """
    if argv is not None:
        _dispatch(list(argv))
        return
    with end_despite_threads():
        _dispatch(sys.argv[1:])


def _dispatch(args: list[str]) -> None:
    if args and args[0] in COMMANDS:
        importlib.import_module(f"mjtrain.cli.{args[0].replace('-', '_')}").main(args[1:])
    else:
        run_command("mjtrain", _print_help, args)


def _print_help(args: list[str]) -> None:
    word = args[0] if args else "--help"
    if word not in ("-h", "--help"):
        hint = suggest(word, COMMANDS, f"give one of {', '.join(COMMANDS)}")
        raise RequestError(f"unknown {'flag' if word.startswith('-') else 'command'} {word}{hint}")
    print(f"usage: {USAGE}\n\nTrain robot policies with reinforcement learning on MuJoCo.\n\ncommands:")
    for name, line in COMMANDS.items():
        print(f"  {name:<14}{line}")
    print("\n  --version     print the version\n\n`mjtrain COMMAND --help` lists the options of a command.")
