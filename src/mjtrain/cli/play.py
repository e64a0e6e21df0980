"""The command play."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjtrain.cli.command import command, take_first
from mjtrain.cli.parsing import add_named_parts, expand_robot_file, join_repeated, parse, with_env
from mjtrain.config import EnvConfig, PlayConfig
from mjtrain.config.limits import find_option_problems
from mjtrain.runtime.errors import RequestError, refuse
from mjtrain.runtime.standard_streams import printable

USAGE = "play TASK [options]"
DESCRIPTION = (
    "Play a trained policy: measure whole episodes and print a table, watch it in a viewer, record a video or a data "
    "set, or write a page to send. TASK is a name from list-tasks, package.module:factory, path/to/file.py:factory or "
    "gymnasium:ID, whose newest run is played; or it is a run directory. Environment and networks are those that the "
    "run recorded. Every setting of the environment (--env.…) is a flag too; `play TASK --help-all` lists them."
)


@dataclass(frozen=True, kw_only=True)
class _EnvOptions:
    """Settings of the environment of the run, without noise and pushes."""

    env: EnvConfig


@command("play")
def main(argv: list[str]) -> None:
    """Run the command; the process ends with status 0, 1, 2, or 128 plus the number of the signal that stopped it."""
    if argv[:1] == ["--help-all"]:  # all options depend on the task
        argv = ["--help"]
    task, args = take_first(argv, "TASK", f"the task comes first, as in {USAGE}; list-tasks prints the names")
    wants_all = "--help-all" in args
    words = join_repeated([arg for arg in args if arg != "--help-all"], "--sim-to-sim")
    found: Any = parse(PlayConfig, words, prog=f"play {task}", description=DESCRIPTION, return_unknown_args=True)
    config, rest = found
    for arg in rest:
        if re.match(r"--(?!env\b)", arg):
            parse(PlayConfig, [arg], prog=f"play {task}")  # raises, with the flags that may have been meant
    from mjtrain.api import measure_run, play_launch
    from mjtrain.evaluation.playing.evaluate import (
        check_viewer,
        find_run_to_play,
        find_values_beyond,
        replay,
        watch,
        with_other_env,
    )
    from mjtrain.launcher import launch

    check_viewer(config)
    check_without_effect(config)
    refuse(find_option_problems(config))
    files = {"--video": config.video, "--html": config.html, "--record": config.record}
    written = [flag for flag, value in files.items() if value is not None]
    shows = config.viewer != "none" or config.replay is not None
    if len(written) > 1:
        raise RequestError(f"{' '.join(written)}: give one of them, because each plays its own episodes")
    if written and shows:
        raise RequestError(f"{written[0]}: leave out --viewer and --replay, which write no file")
    for flag, is_given in (("--json", config.json), ("--sim-to-sim", config.sim_to_sim is not None)):
        if is_given and (written or shows):
            raise RequestError(f"{flag}: prints a table; leave out viewers, files and replays")
    run = find_run_to_play(task, config)
    env_args = ["--help"] if wants_all else rest
    if env_args:
        env_args = expand_robot_file(env_args)
        env: Any = add_named_parts(run.env, env_args)  # what `every` takes is known when it runs
        every = with_env(_EnvOptions, env)
        options = parse(every, env_args, prog=f"play {task}", default=every(env=env))
        run = with_other_env(run, options.env)
    for line in (*run.notices, *find_values_beyond(run, config)):
        print(printable(line), file=sys.stderr)
    where = play_launch(config)
    if config.replay is not None:
        for line in launch(replay, run, config, launch=where):
            print(printable(line))
        return
    if config.viewer != "none":
        launch(watch, run, config, launch=where)
        return
    if written:
        print(launch(_check_writer(config), run, config, launch=where))
        return
    report = measure_run(run, config)
    if config.json:
        plain = json.loads(json.dumps(report), parse_constant=lambda _: None)  # JSON has no NaN
        print(json.dumps(plain, indent=2))
    else:
        from mjtrain.evaluation.summary_table import print_comparison, print_summary

        (print_summary if config.sim_to_sim is None else print_comparison)(report)


def check_without_effect(config: PlayConfig) -> None:
    """Refuse options of something that was not asked for."""
    others = {"--video": config.video, "--html": config.html, "--replay": config.replay}
    given = [flag for flag, value in others.items() if value is not None]
    in_viewer = [f"--viewer {config.viewer}"] * (config.viewer != "none")
    for name, flags in (("num_envs", given), ("episodes", [*given, *in_viewer])):
        value = getattr(config, name)
        if flags and value != getattr(PlayConfig, name):
            raise RequestError(f"--{name.replace('_', '-')} {value}: has no effect with {flags[0]}; leave it out")
    for name, flag, is_asked in (
        ("viewer_host", "--viewer web", config.viewer == "web"),
        ("viewer_port", "--viewer web", config.viewer == "web"),
        ("follow", "--viewer", config.viewer != "none"),
        ("video_length_s", "--video FILE", config.video is not None),
        ("html_episodes", "--html FILE", config.html is not None),
        ("html_length_s", "--html FILE", config.html is not None),
        ("record_format", "--record DIR", config.record is not None),
    ):
        value = getattr(config, name)
        if not is_asked and value != getattr(PlayConfig, name):
            raise RequestError(f"--{name.replace('_', '-')}{f' {value}' * (value is not True)}: needs {flag}")


def _check_writer(config: PlayConfig) -> Callable[..., Path]:
    """Check where the files go, and return the function that writes them."""
    if config.video is not None:
        from mjtrain.evaluation.playing.evaluate import check_video, record_video

        check_video(config)
        return record_video
    if config.html is not None:
        from mjtrain.evaluation.playing.replay_page import check_page, write_page

        check_page(config)
        return write_page
    from mjtrain.evaluation.playing.record_dataset import check_folder, record_dataset

    check_folder(config)
    return record_dataset
