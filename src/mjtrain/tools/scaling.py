"""Measure how a task scales over ranks, by running the command train."""

import json
import os
import statistics
import subprocess
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from mjtrain.launcher.ipc.signals import StopSignals, leave
from mjtrain.runs.run import Rows, read_metrics
from mjtrain.runtime.errors import RequestError, count, require
from mjtrain.runtime.files import replacing, write_whole
from mjtrain.runtime.processes import module_path
from mjtrain.tools import name_flags
from mjtrain.tools.plotting import LABELS, XAxis, x_values
from mjtrain.tools.start_train import become_train

Mode = Literal["weak", "strong", "apart"]

_AXES: tuple[XAxis, ...] = ("wall-time", "env-steps")
_PARTS = ("collect", "learn", "wait")
_LEARNED = ("success/", "loss/")
"""Metrics that are compared between runs, beside the mean return."""

WARM_UP_ITERATIONS = 5
"""Iterations at the start of a run that are not counted: first allocations, kernels, caches."""

RESULT_FILES = ("scaling.json", "scaling.md", "scaling.png")
"""What is written into the folder, beside the runs."""


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """One size of a scaling experiment; times are those of the median iteration, in seconds: the parts add up.

    Where the ranks are separate trainings, speeds are added up, times are means over them, and curves are those of the
    first one.
    """

    mode: Mode
    """weak: environments per rank fixed. strong: environments of the whole job fixed.

    apart: as weak, but each rank is a separate training, so that none waits for another.
    """

    num_ranks: int
    num_envs_per_rank: int
    env_steps_per_second: float
    iteration_s: float
    collect_s: float
    learn_s: float
    wait_s: float
    efficiency: float
    """Env steps per second, divided by the linear value: that of the fewest ranks times the ratio of ranks."""

    curves: dict[str, list[float | None]]
    """What was reached after each iteration, by metric: mean_reward, every success and every loss, beside the training
    seconds (wall-time) and env steps of the whole job (env-steps) until then. None where an iteration has no value."""


@dataclass(frozen=True, kw_only=True)
class ScalingOptions:
    """Train a task with several numbers of ranks, and compare the trainings.

    Compared are env steps per second, where an iteration's time goes, efficiency against linear, and return, successes
    and losses against time and against env steps. Flags after -- go to every run of train.
    """

    ranks: tuple[int, ...] = (1, 2)
    """Numbers of ranks to train with."""

    mode: tuple[Mode, ...] = ("weak", "strong")
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


@dataclass(frozen=True, kw_only=True)
class ScalingStudy(ScalingOptions):
    """Which runs to compare; the folder exists."""

    task: str
    train_flags: tuple[str, ...]

    teacher_flags: tuple[str, ...] = ()
    """See `name_teacher`."""


def run_study(study: ScalingStudy) -> list[ScalingPoint]:
    """Train once per number of ranks and of environments per rank; both modes share the runs that they have in common.

    Where a run failed, a RuntimeError has its standard error.
    """
    given = name_flags(study.train_flags)
    sizes = ("num-envs", "num-envs-total", "max-iterations", "total-env-steps")
    for flag in ("dry-run", "resume", "log-root", "gpu-ids", "num-workers", *sizes):
        if flag in given:
            raise RequestError(f"-- --{flag}: is decided by scaling")
    require("scaling", "plot", "matplotlib")
    ranks = sorted(set(study.ranks))
    if "strong" in study.mode:
        for count in ranks:
            if study.num_envs % count:
                raise RequestError(f"--num-envs {study.num_envs}: strong scaling cannot split it over {count} ranks")
    points: list[ScalingPoint] = []
    trained: dict[tuple[int, int, int], list[Rows]] = {}
    for mode in study.mode:
        jobs = {}
        for count in ranks:
            num_jobs, num_ranks = (count, 1) if mode == "apart" else (1, count)
            size = (num_jobs, num_ranks, study.num_envs // count if mode == "strong" else study.num_envs)
            if size not in trained:
                trained[size] = _train(study, *size)
            jobs[count] = trained[size]
        fewest = ranks[0]
        base = _median_speed(jobs[fewest]) / fewest
        points += [_summarise(mode, count, rows, base) for count, rows in jobs.items()]
    return points


def make_table(points: list[ScalingPoint]) -> str:
    """Return the table as Markdown."""
    header = (
        "| scaling | ranks | envs per rank | env steps/s | iteration, s | collect, s | learn, s | wait, s "
        "| efficiency |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    )
    return header + "\n".join(
        f"| {point.mode} | {point.num_ranks} | {point.num_envs_per_rank:,} | {point.env_steps_per_second:,.0f} "
        f"| {point.iteration_s:.3f} | {point.collect_s:.3f} | {point.learn_s:.3f} | {point.wait_s:.3f} "
        f"| {100 * point.efficiency:.0f} % |"
        for point in points
    )


def write_results(points: list[ScalingPoint], table: str, out_dir: Path) -> None:
    """Write scaling.md with the table, scaling.json and scaling.png, in this order."""
    numbers, text, picture = (out_dir / name for name in RESULT_FILES)
    write_whole(text, table + "\n")
    write_whole(numbers, json.dumps([asdict(point) for point in points], indent=2))
    _plot(points, picture)


def _train(study: ScalingStudy, num_jobs: int, num_ranks: int, num_envs: int) -> list[Rows]:
    """Run the command train with a number of environments per rank, several times at once, and return their metrics."""
    runs = Path(study.out).absolute() / f"{num_jobs}_jobs_of_{num_ranks}_x_{num_envs}"
    before = set(runs.glob("*/*/*"))
    environ = {**os.environ, "PYTHONPATH": module_path()}
    with StopSignals(leave), ExitStack() as started:
        processes = []
        for job in range(num_jobs):
            log_root = runs / str(job)
            log_root.mkdir(parents=True, exist_ok=True)
            gpus = [str(job * num_ranks + rank) for rank in range(num_ranks)]
            on_cpu = ["--gpu-ids", "None", "--num-workers", str(num_ranks), "--num-threads", "1"]
            where = ["--gpu-ids", *gpus] if study.device == "gpu" else on_cpu
            words = [study.task, *where, "--logger", "none"]
            words += ["--num-envs", str(num_envs), "--max-iterations", str(study.max_iterations)]
            words += ["--log-root", str(log_root), *study.train_flags, *study.teacher_flags]
            write_whole(console := log_root / "console.txt", "")
            processes.append(subprocess.Popen(become_train(words, os.devnull, str(console)), env=environ))
            started.callback(processes[-1].wait)
            started.callback(processes[-1].terminate)  # which does nothing to one that has ended
        for process in processes:
            process.wait()
    for job, process in enumerate(processes):
        if process.returncode != 0:
            kind = RequestError if process.returncode == 2 else RuntimeError
            reason = (runs / str(job) / "console.txt").read_text().strip()
            raise kind(f"{count(num_ranks, 'rank')} with {count(num_envs, 'environment')} each: {reason}")
    run_dirs = set(runs.glob("*/*/*")) - before
    return [read_metrics(run_dir)[0] for run_dir in sorted(run_dirs)]


def _counted(rows: Rows) -> Rows:
    return rows[min(WARM_UP_ITERATIONS, len(rows) - 1) :]


def _median_speed(jobs: list[Rows]) -> float:
    return sum(statistics.median(row["env_steps_per_second"] for row in _counted(rows)) for rows in jobs)


def _summarise(mode: Mode, num_ranks: int, jobs: list[Rows], base: float) -> ScalingPoint:
    speed, rows = _median_speed(jobs), jobs[0]
    times = [f"{part}_time_s" for part in _PARTS]
    sorted_jobs = [sorted(_counted(job), key=lambda row: sum(row[time] for time in times)) for job in jobs]
    medians = [by_time[len(by_time) // 2] for by_time in sorted_jobs]
    collect_s, learn_s, wait_s = (statistics.fmean(row[time] for row in medians) for time in times)
    names = ["mean_reward", *dict.fromkeys(name for row in rows for name in row if name.startswith(_LEARNED))]
    x = {axis: x_values(rows, axis).tolist() for axis in _AXES}
    return ScalingPoint(
        mode=mode,
        num_ranks=num_ranks,
        num_envs_per_rank=rows[0]["num_envs_total"] * len(jobs) // num_ranks,
        env_steps_per_second=speed,
        iteration_s=collect_s + learn_s + wait_s,
        collect_s=collect_s,
        learn_s=learn_s,
        wait_s=wait_s,
        efficiency=speed / (num_ranks * base),
        curves=x | {name: [row.get(name) for row in rows] for name in names},
    )


def _plot(points: list[ScalingPoint], path: Path) -> None:
    """Draw env steps per second against ranks, and what was learned against wall time and against env steps."""
    from matplotlib.figure import Figure

    metrics = [name for name in dict.fromkeys(name for point in points for name in point.curves) if name not in _AXES]
    figure = Figure(figsize=(11, 3.4 * (1 + len(metrics))), layout="constrained")
    grid = figure.subplots(1 + len(metrics), 2, squeeze=False)
    _plot_speed(points, grid[0][0])
    runs = {_label(point): point for point in points}  # weak and strong share runs
    for metric, row in zip(metrics, grid[1:], strict=True):
        for axis, axes in zip(_AXES, row, strict=True):
            for label, point in runs.items():
                if metric in point.curves:
                    y = [float("nan") if value is None else value for value in point.curves[metric]]
                    axes.plot(point.curves[axis], y, label=label)
            axes.set(xlabel=LABELS[axis], ylabel=metric)
            axes.grid(alpha=0.3)
    grid[0][1].set_axis_off()
    grid[0][1].legend(*grid[1][0].get_legend_handles_labels(), loc="center", title="what was learned")
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=100)


def _label(point: ScalingPoint) -> str:
    ranks, envs = count(point.num_ranks, "rank"), count(point.num_envs_per_rank, "env")
    return f"{ranks}{' apart' if point.mode == 'apart' else ''} x {envs}"


def _plot_speed(points: list[ScalingPoint], axes: Any) -> None:
    for mode in dict.fromkeys(point.mode for point in points):
        mine = [point for point in points if point.mode == mode]
        counts = [point.num_ranks for point in mine]
        speeds = [point.env_steps_per_second for point in mine]
        (line,) = axes.plot(counts, speeds, marker="o", label=f"{mode} scaling")
        linear = [speeds[0] * count / counts[0] for count in counts]
        axes.plot(counts, linear, linestyle=":", color=line.get_color(), label=f"{mode}, linear")
    axes.set(
        xlabel="ranks", ylabel="env steps per second", ylim=(0, None), xticks=sorted({p.num_ranks for p in points})
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
