"""The command scaling."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mjtrain.cli.command import command, split_task
from mjtrain.cli.parsing import parse
from mjtrain.runtime.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class Options:
    """Train a task with several numbers of ranks, and compare the trainings.

    Compared are env steps per second, where an iteration's time goes, efficiency against linear, and return, successes
    and losses against time and against env steps. Flags after -- go to every run of train.
    """

    ranks: tuple[int, ...] = (1, 2)
    """Numbers of ranks to train with."""

    mode: tuple[Literal["weak", "strong", "apart"], ...] = ("weak", "strong")
    """weak: --num-envs per rank. strong: --num-envs for the whole job, split evenly. apart: as weak, but each rank is a
    separate training, which waits for no other; what the hardware gives to this many at once."""

    num_envs: int = 4096
    """Environments, per rank or, with strong, of the whole job."""

    max_iterations: int = 25
    """Iterations of each run."""

    device: Literal["cpu", "gpu"] = "cpu"
    """cpu: each rank is a worker with one thread. gpu: each rank has a GPU."""

    out: str = "scaling"
    """Folder for the table, scaling.json, scaling.png and the runs."""


@command("scaling", prints_result=False)
def main(argv: list[str]) -> None:
    """Run the command; the process ends with status 0, 1 if a run failed, or 2 if the request was wrong."""
    task, args, train_flags = split_task(argv, "scaling TASK")
    options = parse(Options, args, prog=f"scaling {task}", description=Options.__doc__)
    if not options.ranks or min(options.ranks) < 1:
        given = "".join(f" {count}" for count in options.ranks)
        raise RequestError(f"--ranks{given}: give numbers from 1 up, such as 1 2 4")
    if not options.mode:
        raise RequestError("--mode: give some of weak, strong, apart")
    if options.num_envs < 1:
        raise RequestError(f"--num-envs {options.num_envs}: must be at least 1")
    from mjtrain.env.catalog import resolve_task_name
    from mjtrain.tools.scaling import ScalingStudy, run_study, write_results

    study = ScalingStudy(
        task=resolve_task_name(task),
        ranks=tuple(sorted(set(options.ranks))),
        modes=options.mode,
        num_envs=options.num_envs,
        max_iterations=options.max_iterations,
        on_gpus=options.device == "gpu",
        out_dir=_make_folder(options.out),
        train_flags=tuple(train_flags),
    )
    print(write_results(run_study(study), study.out_dir))


def _make_folder(name: str) -> Path:
    folder = Path(name).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RequestError(f"--out {name}: cannot be written ({error.strerror})") from error
    return folder
