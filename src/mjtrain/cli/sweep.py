"""The command sweep."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from mjtrain.cli.command import command, split_task
from mjtrain.cli.parsing import parse
from mjtrain.runtime.errors import RequestError, count, require
from mjtrain.runtime.files import shorten
from mjtrain.tools.sweep.options import SweepOptions

if TYPE_CHECKING:
    from mjtrain.tools.sweep.plan import SweepPlan
    from mjtrain.tools.sweep.results import TrialResult


@dataclass(frozen=True, kw_only=True)
class Options(SweepOptions):
    """Search for good settings of a task with many trainings, side by side on the cores and GPUs there are.

    Flags after -- go to every run of train. After Ctrl-C, a crash or a kill, rerun the command to resume.
    """

    param: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """A setting to search; give one --param for each. A flag of train without its dashes, several with the same value
    separated by commas, and its values: log LOW HIGH (a number whose logarithm is spread evenly), uniform LOW HIGH, int
    LOW HIGH, choice A B C (each a word, or several in quotes), or flag (a flag without a value, given or left out)."""


@command("sweep", prints_result=False)
def main(argv: list[str]) -> None:
    """Run the command.

    The process ends with status 0, 1 if no trial was complete, the disk is full or the folder is missing, 2 if the
    request was wrong, and 128 plus the number of the signal that stopped it.
    """
    task, args, train_flags = split_task(argv, "sweep TASK --param …")
    options = parse(Options, args, prog=f"sweep {task}", description=Options.__doc__)
    require("sweep", "sweep", "optuna", "matplotlib")
    from mjtrain.cli.train import read_command
    from mjtrain.env.catalog import resolve_task_name
    from mjtrain.tools.sweep.plan import SweepRequest, resolve_sweep, write_wandb_sweep
    from mjtrain.tools.sweep.run_sweep import run_sweep
    from mjtrain.tools.sweep.space import parse_space, read_space_file

    _check_wandb(options)
    parameters = parse_space([*options.param, *([] if options.space is None else read_space_file(Path(options.space)))])
    request = SweepRequest(
        **vars(options), task=resolve_task_name(task), parameters=parameters, train_flags=tuple(train_flags)
    )
    plan = resolve_sweep(request, lambda words: read_command(words)[:2])
    if options.wandb is not None:
        write_wandb_sweep(plan, Path(options.wandb))
        print(f"wrote {options.wandb}; continue with: wandb sweep {shlex.quote(options.wandb)}")
        return
    _print_result(run_sweep(plan), plan)


def _check_wandb(options: Options) -> None:
    """Refuse options that say how this machine is used, where W&B's agents start the trainings."""
    if options.wandb is None:
        return
    here = ("jobs", "cores_per_trial", "gpus_per_trial", "start_timeout_s", "stall_timeout_s", "shared", "sweep_dir")
    for name in here:
        if getattr(options, name) != getattr(Options, name):
            raise RequestError(f"--{name.replace('_', '-')}: has no meaning with --wandb; each agent starts one run")


def _print_result(trials: "list[TrialResult]", plan: "SweepPlan") -> None:
    from mjtrain.tools.sweep.plan import PICTURE, SUMMARY
    from mjtrain.tools.sweep.results import count_states, find_best

    counts, best, number = count_states(trials), find_best(trials, plan), count(len(trials), "trial")
    told = ", ".join(f"{times} {state}" for state, times in counts.items() if times)
    print(f"{number}: {told}; {sum(trial.env_steps for trial in trials):,} env steps")
    files = [plan.folder / name for name in (SUMMARY, PICTURE)]
    print("see " + " and ".join(str(shorten(file)) for file in files if file.exists()))
    if best is None and counts["running"]:  # by other processes
        print("no trial is complete yet")
        return
    if best is None:
        causes = [f"trial {trial.number} failed: {trial.cause}" for trial in trials if trial.cause]
        print("\n".join(["sweep: no trial is complete", *causes[-1:]]), file=sys.stderr)
        sys.exit(1)
    print(f"best: trial {best.number}, {plan.metric} {best.value:.6g}")
    print(f"\n  {plan.best_command(best.params)}\n")


if __name__ == "__main__":
    main()
