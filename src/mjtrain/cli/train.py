"""The command train."""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from mjtrain.cli.command import command
from mjtrain.cli.parsing import (
    add_named_parts,
    expand_agent_flags,
    expand_robot_file,
    join_repeated,
    parse,
    with_env,
    without_rare,
)
from mjtrain.config import AgentConfig, EnvConfig, LaunchConfig, RunConfig, TrainConfig
from mjtrain.runtime.errors import RequestError

USAGE = "train TASK [options]"


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Train a policy on a task."""

    launch: Annotated[LaunchConfig, tyro.conf.arg(name="")]
    run: Annotated[RunConfig, tyro.conf.arg(name="")]
    dry_run: bool = False
    """Print the resolved plan and facts about this machine as JSON; start nothing."""


@dataclass(frozen=True, kw_only=True)
class AllOptions(_Options):
    """The same with every setting of the task and of the algorithm."""

    env: EnvConfig
    agent: AgentConfig


@command("train", prints_result=False)
def main(argv: list[str]) -> None:
    """Run the command; the process ends with status 0, 1, 2, or 128 plus the number of the signal that stopped it."""
    if not argv or argv[0] in ("-h", "--help", "--help-all"):
        _print_help("train TASK", RunConfig())
        return
    if argv[0].startswith("-"):
        raise RequestError(f"the task comes first, as in {USAGE}; list-tasks prints the names")
    config, launch, dry_run = read_command(argv)
    from mjtrain.api import start_training
    from mjtrain.training.request import preview, resolve_training

    if dry_run:
        request = resolve_training(config, launch)
        plain = preview(request)
        print(json.dumps(plain, indent=2))
        for notice in plain["notices"]:
            print(notice, file=sys.stderr)
        print("`mjtrain doctor` with the same launch flags tries what this plan needs", file=sys.stderr)
    else:
        start_training(config, launch)


def read_command(argv: Sequence[str]) -> tuple[TrainConfig, LaunchConfig, bool]:
    """Read a task and its flags; help that was asked for is printed, and ends the process."""
    from mjtrain.api import make_train_config

    task, *args = argv
    defaults = make_train_config(task)
    args = expand_robot_file(expand_agent_flags(args))
    for flag in ("--inject-fault", "--stop-when", "--without", "--wandb-tags", "--hostnames", "--copy-env"):
        args = join_repeated(args, flag)
    env = add_named_parts(defaults.env, args)
    if {"-h", "--help"} & set(args):
        _print_help(f"train {task}", defaults.run)
    every = with_env(AllOptions, env)
    args = ["--help" if arg == "--help-all" else arg for arg in args]
    prog, given = f"train {task}", every(launch=LaunchConfig(), run=defaults.run, env=env, agent=defaults.agent)
    options = parse(every, args, prog=prog, default=given)
    agents = defaults.default_agents
    if agents is not None and any(arg.startswith("--agent") for arg in args):
        # A flag counts on a GPU too, also with the value that the agent for a CPU has.
        with contextlib.suppress(RequestError):  # of an agent with other settings, such as those of DAgger
            on_gpu = parse(every, args, prog=prog, default=dataclasses.replace(given, agent=agents[1]))
            agents = (options.agent, on_gpu.agent)
    config = dataclasses.replace(defaults, run=options.run, env=options.env, agent=options.agent, default_agents=agents)
    return config, options.launch, options.dry_run


def _print_help(prog: str, run: RunConfig) -> None:
    """Print the options that every task has, without the rare ones, and exit."""
    with without_rare():
        parse(
            _Options,
            ["--help"],
            prog=prog,
            default=_Options(launch=LaunchConfig(), run=run),
            description="Train a policy. TASK is a name from list-tasks, package.module:factory, "
            "path/to/file.py:factory or gymnasium:ID. Every setting of the task (--env.…) and of the algorithm "
            "(--agent.…) is a flag too; `train TASK --help-all` lists them, and more about networks, videos and W&B.",
        )


if __name__ == "__main__":
    main()
