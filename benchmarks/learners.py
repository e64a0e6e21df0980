"""Train tasks by their default command under each learner: after how long is a policy good enough, and how good is it?

    uv run benchmarks/learners.py                                   # two tasks, each learner; 40 minutes on two cores
    uv run benchmarks/learners.py --tasks Quadruped-Velocity-Flat --learners skrl skrl_jax --seed 3
    uv run benchmarks/learners.py --write                           # and replace tables and plots of docs/learners.md

The only flags are the learner, the seed and a checkpoint every 10 iterations. What is good enough, and the clock, are
those of speedrun.py; the last checkpoint is judged too. Env steps/s are those of the median iteration, so that what JAX
compiles counts in the seconds only. Exits with 1 if a learner has no checkpoint that is good enough.
"""

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from judges import GOALS
from speedrun import JUDGE_SEED, Finish, describe_machine, find_finish, train

from learning import judge, read_rows
from mjtrain import LaunchConfig, launch
from mjtrain.runs.run import Rows
from mjtrain.tools.plotting import Group, RunCurves, draw_curves

DOCS = Path(__file__).parents[1] / "docs"
TASKS = ("Cartpole-Balance", "Quadruped-Velocity-Flat")
LEARNERS = ("rsl_rl", "skrl", "skrl_jax", "rl_games")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a learner made of a task."""

    rows: Rows
    """Metrics of the training."""

    finish: Finish | None
    """The first checkpoint that is good enough."""

    last: list[float]
    """What the judge measured of the last checkpoint."""

    @property
    def env_steps_per_s(self) -> float:
        """Env steps per second of the median iteration, without saving."""
        seconds = statistics.median(row["collect_time_s"] + row["learn_time_s"] for row in self.rows)
        return self.rows[-1]["env_steps_total"] / len(self.rows) / seconds


def measure(task: str, learner: str, seed: int) -> Outcome:
    """Train to the end, and judge."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir, begin = train(task, seed, Path(folder), "--learner", learner)
        rows = read_rows(run_dir)
        finish = find_finish(task, seed, run_dir, begin)
        checkpoint = run_dir / f"model_{rows[-1]['iteration']}.pt"
        where = LaunchConfig(gpu_ids=None, seed=JUDGE_SEED + seed)
        last, _ = launch(judge, task, checkpoint, rows[-1], launch=where)
    return Outcome(rows=rows, finish=finish, last=last)


def describe(task: str, learner: str, outcome: Outcome) -> str:
    """Return a line of the table."""
    finish = outcome.finish
    first = "| never | | " if finish is None else f"| {finish.seconds:.0f} | {finish.env_steps:,} "
    met = [bar.met(figure) for bar, figure in zip(GOALS[task].measures, outcome.last, strict=True)]
    figures = (f"{figure:.3f}{'' if good else ' (missed)'}" for figure, good in zip(outcome.last, met, strict=True))
    return f"| {learner} {first}| {outcome.env_steps_per_s:,.0f} | {' | '.join(figures)} |"


def draw(task: str, outcomes: dict[str, Outcome]) -> Path:
    """Plot the learning curves of all learners over training time."""
    path = DOCS / f"learners_{task.lower()}.png"
    runs = [RunCurves(name=learner, rows=outcome.rows, settings={}) for learner, outcome in outcomes.items()]
    groups = [Group(label=run.name, runs=(run,)) for run in runs]
    draw_curves(groups, [GOALS[task].curve], "wall-time", path, title=task)
    return path


def write(task: str, lines: list[str]) -> None:
    """Put the lines into the task's part of docs/learners.md."""
    page = DOCS / "learners.md"
    begin, end = f"<!-- learners {task}: begin -->\n", f"<!-- learners {task}: end -->"
    head, rest = page.read_text().split(begin)
    page.write_text(head + begin + "\n".join(lines) + f"\n{end}" + rest.split(end)[1])


def main() -> None:
    """Train, judge, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=list(GOALS))
    parser.add_argument("--learners", nargs="+", default=LEARNERS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="put tables and pictures into docs/")
    arguments = parser.parse_args()
    missed = False
    for task in arguments.tasks:
        bars = " | ".join(measure.heading() for measure in GOALS[task].measures)
        lines = [
            f"{task}, seed {arguments.seed}. {describe_machine()}",
            "",
            f"| learner | good enough after s | env steps | env steps/s | {bars} |",
            "|---" * (4 + len(GOALS[task].measures)) + "|",
        ]
        print("\n".join(lines), flush=True)
        outcomes: dict[str, Outcome] = {}
        for learner in arguments.learners:
            outcomes[learner] = measure(task, learner, arguments.seed)
            lines.append(describe(task, learner, outcomes[learner]))
            print(lines[-1], flush=True)
            missed |= outcomes[learner].finish is None
        if arguments.write:
            write(task, [*lines, "", f"![learning curves of {task}]({draw(task, outcomes).name})"])
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
