"""The command scaling."""

import tempfile
from pathlib import Path

from mjtrain.cli.command import command, split_task
from mjtrain.cli.parsing import join_repeated, parse
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import is_something_else, saying_where
from mjtrain.tools.scaling import RESULT_FILES, ScalingOptions, ScalingStudy, make_table, run_study, write_results


@command("scaling", prints_result=False)
def main(argv: list[str]) -> None:
    """Run the command.

    The process ends with status 0, 1 if a run failed or the results cannot be written, or 2 if the request was wrong.
    """
    task, args, train_flags = split_task(argv, "scaling TASK")
    for flag in ("--ranks", "--mode"):
        args = join_repeated(args, flag)
    options = parse(ScalingOptions, args, prog=f"scaling {task}", description=ScalingOptions.__doc__)
    if not options.ranks or min(options.ranks) < 1:
        given = "".join(f" {count}" for count in options.ranks)
        raise RequestError(f"--ranks{given}: give numbers from 1 up, such as 1 2 4")
    if not options.mode:
        raise RequestError("--mode: give some of weak, strong, apart")
    if options.num_envs < 1:
        raise RequestError(f"--num-envs {options.num_envs}: must be at least 1")
    from mjtrain.cli.train import read_command
    from mjtrain.env.catalog import resolve_task_name
    from mjtrain.runs.teacher import name_teacher

    words = (resolve_task_name(task), *train_flags)
    teacher = name_teacher(read_command(words)[0], "scaling")
    study = ScalingStudy(**vars(options), task=words[0], train_flags=words[1:], teacher_flags=tuple(teacher))
    folder = _make_folder(options.out)
    points = run_study(study)
    table = make_table(points)
    try:
        with saying_where("--out", options.out):
            write_results(points, table, folder)
    finally:
        print(table)


def _make_folder(name: str) -> Path:
    folder = Path(name).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RequestError(f"--out {name}: cannot be written ({error.strerror})") from error
    for file in RESULT_FILES:
        if is_something_else(folder / file):
            raise RequestError(f"--out {name}: its {file} is not a regular file; remove it, or give another folder")
    return folder
