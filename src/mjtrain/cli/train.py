"""The command train."""

import dataclasses
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from mjtrain.cli.parsing import hiding, parse
from mjtrain.config import AgentConfig, EnvConfig, LaunchConfig, RunConfig
from mjtrain.errors import RequestError
from mjtrain.standard_streams import open_missing_streams

USAGE = "train TASK [options]"

RARE = frozenset(
    {
        "ssh_config_file", "copy_env", "backend", "interface", "connect_timeout_s", "process_group_timeout_s",
        "checkpoint_flush_s", "drift_check_interval", "video_interval", "video_length_s", "wandb_entity", "wandb_group",
        "wandb_tags", "wandb_name", "wandb_upload_checkpoints",
    }
)  # fmt: skip
"""Options that only --help-all lists."""


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Train a policy on a task."""

    launch: Annotated[LaunchConfig, tyro.conf.arg(name="")]
    run: Annotated[RunConfig, tyro.conf.arg(name="")]
    dry_run: bool = False
    """Print the resolved plan as JSON and what was found out about this machine; start nothing."""


@dataclass(frozen=True, kw_only=True)
class _AllOptions(_Options):
    """The same with every setting of the task and of the algorithm."""

    env: EnvConfig
    agent: AgentConfig


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; the process ends with status 0, 1, 2, or 128 plus the number of the signal that stopped it."""
    open_missing_streams()
    try:
        _main(list(sys.argv[1:] if argv is None else argv))
    except RequestError as error:
        for line in (str(error), *getattr(error, "__notes__", ())):
            print(f"train: {' '.join(line.split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("train: stopped by SIGINT", file=sys.stderr)
        sys.exit(130)
    except SystemExit as stop:
        if isinstance(stop.code, int) and stop.code > 128:
            print(f"train: stopped by {signal.Signals(stop.code - 128).name}", file=sys.stderr)
        raise
    except Exception as error:
        from mjtrain.launcher.failure import final_message

        print(final_message(error), file=sys.stderr)
        sys.exit(1)


def _main(argv: list[str]) -> None:
    if not argv or argv[0].startswith("-"):
        _handle_missing_task(argv)
        return
    task, *args = argv
    from mjtrain.api import make_train_config, start_training
    from mjtrain.request import preview, resolve_training

    defaults = make_train_config(task)
    if {"-h", "--help"} & set(args):
        _print_help(f"train {task}", defaults.run)
    options = parse(
        _AllOptions,
        ["--help" if arg == "--help-all" else arg for arg in args],
        prog=f"train {task}",
        default=_AllOptions(launch=LaunchConfig(), run=defaults.run, env=defaults.env, agent=defaults.agent),
    )
    config = dataclasses.replace(defaults, run=options.run, env=options.env, agent=options.agent)
    if options.dry_run:
        print(json.dumps(preview(resolve_training(config, options.launch)), indent=2))
    else:
        start_training(config, options.launch)


def _handle_missing_task(argv: list[str]) -> None:
    """Print the help that needs no task, or say that one is needed."""
    if argv and argv[0] not in ("-h", "--help", "--help-all"):
        raise RequestError(f"the task comes first, as in {USAGE}; list-tasks prints the names")
    _print_help("train TASK", RunConfig())


def _print_help(prog: str, run: RunConfig) -> None:
    """Print the options that every task has, without the rare ones, and leave."""
    with hiding(RARE):
        parse(
            _Options,
            ["--help"],
            prog=prog,
            default=_Options(launch=LaunchConfig(), run=run),
            description="Train a policy. TASK is a name from list-tasks, package.module:factory or "
            "path/to/file.py:factory. Every setting of the task (--env.…) and of the algorithm (--agent.…) is a flag "
            "too; `train TASK --help-all` lists them, and more about networks, videos and W&B.",
        )


if __name__ == "__main__":
    main()
