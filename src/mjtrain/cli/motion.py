"""The command motion."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from mjtrain.cli.command import TrainedRunOptions, command
from mjtrain.cli.parsing import parse
from mjtrain.config import EnvConfig, LaunchConfig, PlayConfig, RobotConfig
from mjtrain.runtime.errors import RequestError, count, suggest

if TYPE_CHECKING:
    from mjtrain.motion.motion import Motion
    from mjtrain.motion.skeleton import Skeleton

OptionsT = TypeVar("OptionsT")

USAGE = "mjtrain motion convert|info|play|record ..."

VERBS = {
    "convert": "IN OUT: convert, cut, repeat or mirror a motion",
    "info": "FILE: print length, speed, lowest point, joint limits, jerk and foot slip",
    "play": "FILE: show a motion in a viewer",
    "record": "RUN OUT: roll out a trained policy, and write what the robot does",
}
"""What the command does, by its first word."""


@dataclass(frozen=True, kw_only=True)
class _Robot:
    """The robot of a motion; without it only files that name their joints can be read."""

    task: str | None = None
    """Task whose robot it is, as for train."""

    robot: str | None = None
    """MJCF file of the robot, instead of a task."""

    input_fps: float | None = None
    """Frames per second of a CSV file, which does not say; Unitree's have 30."""


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(_Robot):
    """Convert a motion; edits happen in the order of these options."""

    retarget: bool = False
    """Fit a motion of a body of other proportions, such as DeepMimic's humanoid, whose joints have the same names."""

    mirror: bool = False
    """Write the mirror image, by the mirror of the robot of the task."""

    start_s: float = 0.0
    """First moment that is kept, in s."""

    end_s: float | None = None
    """Last moment that is kept, in s. Default: the end."""

    lift_m: float = 0.0
    """Raise the whole motion, in m."""

    blend_s: float = 0.0
    """Let the last part of this length approach the first frame, so that the motion can be repeated, in s."""

    cycles: int = 1
    """Repeat it, each time from where it has ended."""

    fps: float | None = None
    """Frames per second of the output. Default: as they are."""

    to: Literal["mjtrain", "mjlab"] = "mjtrain"
    """Format: mjtrain, or mjlab, which BeyondMimic reads too."""


@dataclass(frozen=True, kw_only=True)
class InfoOptions(_Robot):
    """Print the figures of a motion."""

    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True, kw_only=True)
class ShowOptions(_Robot):
    """Play a motion in a viewer."""

    viewer: Literal["web", "native"] = "web"
    """web, or native, a window of this machine."""

    viewer_host: str = "127.0.0.1"
    """Address on which the web viewer listens."""

    viewer_port: int = 8080
    """Port of the web viewer; the next free one if it is taken, and any that is free for 0."""


@dataclass(frozen=True, kw_only=True)
class RecordOptions(TrainedRunOptions):
    """Roll out a trained policy and write what the robot does as a motion."""

    length_s: float = 4.0
    """Length of the motion, in s."""

    settle_s: float = 2.0
    """Time that the policy acts before, which is not recorded, in s."""

    command: str = ""
    """Command term to hold, by the values of its controls."""

    values: tuple[float, ...] = ()
    """Value of each control of the command, such as a velocity ahead, to the left, and a turning rate."""

    seed: int = 1
    """Seed of the start."""


@command("motion")
def main(argv: list[str]) -> None:
    """Run the command; the process ends with status 0, 1, or 2 if the request was wrong."""
    actions = {"convert": _convert, "info": _info, "play": _play, "record": _record}
    word, *args = argv or ["--help"]
    if word in ("-h", "--help"):
        print(f"usage: {USAGE}\n\nReference motions for motion tracking.\n")
        for name, line in VERBS.items():
            print(f"  {name:<10}{line}")
        print("\nFILE and IN may be a URL, or an artifact of W&B (wandb://entity/project/name:version).")
        print("`mjtrain motion convert --help` and so on list the options.")
        return
    if word not in actions:
        hint = suggest(word, actions, f"give one of {', '.join(actions)}")
        raise RequestError(f"unknown command {word}{hint}")
    actions[word](args)


def _parse(options: type[OptionsT], verb: str, names: str, args: list[str]) -> tuple[list[str], OptionsT]:
    """Split the files from the options, and read these; where help is asked for, it needs no files."""
    prog = f"mjtrain motion {verb} {names}"
    count = len(names.split())
    files, rest = args[:count], args[count:]
    if "-h" in args or "--help" in args:
        rest = ["--help"]
    elif len(files) < count or any(file.startswith("-") for file in files):
        raise RequestError(f"give the files first, as in {prog} [options]")
    return files, parse(options, rest, prog=prog, description=options.__doc__)


def _skeleton(options: _Robot) -> "Skeleton | None":
    from mjtrain.env.catalog import load_task
    from mjtrain.motion.skeleton import load_skeleton

    if options.task is not None and options.robot is not None:
        raise RequestError("--task and --robot: give one of them")
    if options.robot is not None:
        return load_skeleton(RobotConfig(file=options.robot))
    if options.task is None:
        return None
    env = load_task(options.task).env
    if not isinstance(env, EnvConfig):
        raise RequestError(f"--task {options.task}: is an external environment, which has no robot of mjtrain's")
    return load_skeleton(env.robot)


def _convert(args: list[str]) -> None:
    files, options = _parse(ConvertOptions, "convert", "IN OUT", args)
    from mjtrain.motion.edit import blend_seam, cut, lift, loop, resample, retarget
    from mjtrain.motion.files import read_motion, write_motion
    from mjtrain.runs.motion_places import find_motion

    skeleton = _skeleton(options)
    if options.retarget:
        if skeleton is None:
            raise RequestError("--retarget: needs the robot; give --task or --robot")
        path = find_motion(files[0])
        with _beginning("--retarget: needs a file that names its joints; "):  # those of another body
            motion = read_motion(path, fps=options.input_fps)
        motion = retarget(motion, skeleton)
    else:
        motion = read_motion(find_motion(files[0]), skeleton, fps=options.input_fps)
    if options.mirror:
        if skeleton is None:
            raise RequestError("--mirror: needs a robot that says what its mirror images are; give --task")
        try:
            motion = skeleton.mirror(motion)
        except RequestError as error:  # names flags of train, which this command does not have
            problem = str(error).replace("--env.robot.mirror", "robot.mirror")
            where = f"task {options.task} sets it" if options.task else "only a task sets it: give --task"
            raise RequestError(f"--mirror: {problem}; {where}") from error
    with _beginning("--start-s, --end-s: "):
        motion = cut(motion, options.start_s, options.end_s)
    motion = lift(motion, options.lift_m)
    if options.blend_s:
        with _beginning("--blend-s: "):
            motion = blend_seam(motion, options.blend_s)
    with _beginning("--cycles: "):
        motion = loop(motion, options.cycles)
    if options.fps is not None:
        with _beginning("--fps: "):
            motion = resample(motion, options.fps)
    write_motion(files[1], motion, skeleton, mjlab=options.to == "mjlab")
    _print_written(files[1], motion)


@contextmanager
def _beginning(words: str) -> Iterator[None]:
    """Put words in front of what is wrong, such as the flag that it is about."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"{words}{error}") from error


def _print_written(file: str, motion: "Motion") -> None:
    frames = count(motion.num_frames, "frame")
    print(f"{file}: {frames}, {motion.length_s:.2f} s at {motion.fps:g} frames per second")


def _info(args: list[str]) -> None:
    files, options = _parse(InfoOptions, "info", "FILE", args)
    from mjtrain.motion.files import read_motion
    from mjtrain.motion.report import report_motion
    from mjtrain.runs.motion_places import find_motion

    skeleton = _skeleton(options)
    report = report_motion(read_motion(find_motion(files[0]), skeleton, fps=options.input_fps), skeleton)
    if options.json:
        print(json.dumps(asdict(report), indent=2))
        return
    for name, value in report.rows():
        print(f"{name:<20}{value}")
    if skeleton is None:
        print("lowest point, joint limits and foot slip need the robot: give --task or --robot")


def _play(args: list[str]) -> None:
    files, options = _parse(ShowOptions, "play", "FILE", args)
    skeleton = _skeleton(options)
    if skeleton is None:
        raise RequestError("a motion can only be shown on a robot; give --task or --robot")
    from mjtrain.cli.play import check_without_effect
    from mjtrain.evaluation.playing.evaluate import check_viewer, show_motion
    from mjtrain.motion.files import read_motion
    from mjtrain.runs.motion_places import find_motion

    config = PlayConfig(viewer=options.viewer, viewer_host=options.viewer_host, viewer_port=options.viewer_port)
    check_without_effect(config)
    check_viewer(config)
    path = find_motion(files[0])
    show_motion(path, read_motion(path, skeleton, fps=options.input_fps), skeleton, config)


def _record(args: list[str]) -> None:
    files, options = _parse(RecordOptions, "record", "RUN OUT", args)
    from mjtrain.evaluation.playing.evaluate import find_run_to_play
    from mjtrain.evaluation.playing.trajectories import record_motion
    from mjtrain.launcher import launch
    from mjtrain.motion.files import check_out, write_motion

    check_out(files[1])
    own = ("length_s", "settle_s")
    config = PlayConfig(**{name: value for name, value in vars(options).items() if name not in own})
    run = find_run_to_play(files[0], config)
    where = LaunchConfig(gpu_ids=None, seed=options.seed)
    motion = launch(record_motion, run, config.held, options.settle_s, options.length_s, launch=where)
    write_motion(files[1], motion)
    _print_written(files[1], motion)
