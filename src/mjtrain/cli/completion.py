"""The command completion: what bash completes for all other commands."""

import contextlib
import dataclasses
import io
from typing import Annotated, Any, Union

import tyro

from mjtrain.cli import check_robot, doctor, export, init, list_tasks, plot, runs, sweep, train
from mjtrain.cli.command import command
from mjtrain.cli.main import COMMANDS
from mjtrain.cli.parsing import parse, with_env
from mjtrain.config import EnvConfig, LaunchConfig, PlayConfig, TaskConfig
from mjtrain.config.robot import ImportConfig
from mjtrain.runtime.errors import RequestError
from mjtrain.tools.scaling import ScalingOptions

SHORT_NAMES = ("train", "play", "list-tasks", "plot", "scaling", "sweep", "doctor")
"""Commands that are completed under their own names too; export is a builtin of the shell."""

REGISTRATION = "# Register completion for the full program name."
"""Where the part of tyro's script begins that registers its function."""

DISPATCH = """
# mjtrain COMMAND …: completed like the command.
_mjtrain() {{
  if (( COMP_CWORD == 1 )); then
    COMPREPLY=($(compgen -W "{commands}" -- "${{COMP_WORDS[1]}}"))
    return
  fi
  local function="_tyro_${{COMP_WORDS[1]//-/_}}"
  declare -F "$function" > /dev/null || return
  COMP_WORDS=("${{COMP_WORDS[@]:1}}")
  COMP_CWORD=$((COMP_CWORD - 1))
  "$function"
}}
complete -F _mjtrain mjtrain
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PlayOptions:
    play: Annotated[PlayConfig, tyro.conf.arg(name="")]
    env: EnvConfig


@command("completion")
def main(args: list[str]) -> None:
    """Run the command; the process ends with status 0, or 2 if the request was wrong."""
    if not args or {"-h", "--help"} & set(args):
        print(
            "usage: mjtrain completion {bash}\n\nPrint a completion script for the tasks and flags "
            "that are installed now:\n\n  mjtrain completion bash > ~/.mjtrain-completion\n"
            "  echo 'source ~/.mjtrain-completion' >> ~/.bashrc"
        )
        return
    if args != ["bash"]:
        raise RequestError(f"{' '.join(args)}: give a shell, one of bash")
    from mjtrain.env.catalog import list_tasks as list_entries
    from mjtrain.env.catalog import load_task

    tasks = {entry.name: load_task(entry.name) for entry in list_entries()}
    kinds: dict[str, Any] = {
        "train": _choice_of_tasks(tasks, _train_options),
        "play": _choice_of_tasks(tasks, lambda task: with_env(_PlayOptions, task.env)(play=PlayConfig(), env=task.env)),
        "scaling": _choice_of_tasks(tasks, lambda _: ScalingOptions()),
        "sweep": _choice_of_tasks(tasks, lambda _: sweep.Options()),
        "list-tasks": list_tasks.Options,
        "runs": runs.Options,
        "plot": plot.Options,
        "export": export.Options,
        "init": init.Options,
        "doctor": doctor.Options,
        "import-robot": ImportConfig,
        "check-robot": check_robot.Options,
    }
    for name, kind in kinds.items():
        print(_function(name, kind))
        if name in SHORT_NAMES:
            print(f"complete -F _tyro_{name.replace('-', '_')} {name}")
    print(DISPATCH.format(commands=" ".join(COMMANDS)))


def _train_options(task: TaskConfig) -> "train.AllOptions":
    from mjtrain.api import make_train_config

    options = with_env(train.AllOptions, task.env)
    return options(launch=LaunchConfig(), run=make_train_config(task).run, env=task.env, agent=task.agent)


def _choice_of_tasks(tasks: dict[str, TaskConfig], options: Any) -> Any:
    """Make a type that tyro reads as the name of a task and the options of that task."""
    choices = []
    for name, task in tasks.items():
        default = options(task)
        choices.append(Annotated[type(default), tyro.conf.subcommand(name, default=default, prefix_name=False)])
    return Union[tuple(choices)]  # noqa: UP007


def _function(name: str, kind: Any) -> str:
    """Return tyro's completion script for a command, without the part that registers it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        parse(kind, ["--tyro-print-completion", "bash"], prog=name)
    return out.getvalue().partition(REGISTRATION)[0]
