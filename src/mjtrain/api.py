"""Train from Python."""

import dataclasses
import json
import os
import sys
import time
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjtrain.catalog import load_task, resolve_task_name
from mjtrain.checkpoint import checkpoint_iteration, find_valid_checkpoint
from mjtrain.config import LaunchConfig, RunConfig, TaskConfig, TrainConfig, to_plain
from mjtrain.engines import resolve_engine
from mjtrain.env.term_check import check_terms
from mjtrain.errors import RequestError
from mjtrain.launcher import LaunchPlan, count_gpus, find_hosts, gather, make_plan, run_plan
from mjtrain.rank import RankContext
from mjtrain.reporting.events import last_iteration, write_event
from mjtrain.run_size import resolve_run_size
from mjtrain.runs.git_state import read_git_state
from mjtrain.runs.requeue import requeue_when_stopped, resolve_requeue
from mjtrain.runs.resume import check_urls, names_local_run, open_run
from mjtrain.runs.run_dir import claim_run_dir, find_run, list_changes, name_run_dir, save_params
from mjtrain.video.backend import drawing_environ

if TYPE_CHECKING:
    from mjtrain.launcher.failure import Failure
    from mjtrain.training import TrainResult

RECORDED_PACKAGES = ("mjtrain", "torch", "rsl-rl-lib", "mujoco", "mujoco-warp", "warp-lang", "torchrunx")


def train(task: str | TaskConfig, *, launch: LaunchConfig | None = None, **options: Any) -> "TrainResult":
    """Train a policy.

    Args:
        task: Name of a task, path of a factory (see `catalog.load_task`), or a task itself.
        launch: Which ranks; by default the first visible GPU, or the CPU.
        **options: `env` and `agent` replace those of the task; anything else is a field of `RunConfig`, such as
            num_envs or max_iterations.

    Returns:
        Where the run lives, its last checkpoint and its last metrics.

    Raises:
        RequestError: The request cannot be met.
        Exception: The first exception raised by any rank.
    """
    return start_training(make_train_config(task, **options), launch or LaunchConfig())


def make_train_config(task: str | TaskConfig, **options: Any) -> TrainConfig:
    """Complete a task to a run; arguments as those of `train`."""
    defaults = load_task(task) if isinstance(task, str) else task
    name = resolve_task_name(task) if isinstance(task, str) else "custom"
    env, agent = options.pop("env", defaults.env), options.pop("agent", defaults.agent)
    run = RunConfig(num_envs=defaults.num_envs, max_iterations=defaults.max_iterations)
    known = [field.name for field in dataclasses.fields(run)]
    for option in options:
        if option not in known:
            raise RequestError(f"train() has no option {option}; there are launch, env, agent, {', '.join(known)}")
    return TrainConfig(task=name, env=env, agent=agent, run=dataclasses.replace(run, **options))


def resolve_training(config: TrainConfig, launch: LaunchConfig) -> tuple[TrainConfig, LaunchPlan]:
    """Resolve a run against this machine without starting or writing anything.

    Returns:
        The run with its totals resolved to what one rank does, and who runs where.

    Raises:
        RequestError: The request cannot be met; the message names the flag, the value and what would be right.
    """
    config, _ = resolve_requeue(config, launch, os.environ)
    hosts = find_hosts(launch, Path(config.run.log_root).absolute())
    run_dir = find_run(config)[0] if names_local_run(config.run.resume) else name_run_dir(config)
    plan = make_plan(launch, run_dir, hosts)
    return _complete(config, plan), plan


def _complete(config: TrainConfig, plan: LaunchPlan) -> TrainConfig:
    """Resolve a run's totals to what one rank does, and check what can be checked before it begins."""
    if config.run.resume is not None and config.run.load is not None:
        raise RequestError(f"--load {config.run.load}: cannot go with --resume, which brings its own weights")
    check_terms(config.env)
    config = resolve_run_size(check_urls(config), plan.world_size)
    resolve_engine(config.run.engine, plan.ranks[0].device)
    if config.run.video:
        _check_video(config.run)
    for flag, path in (("--env.robot", config.env.robot), ("--load", config.run.load)):
        if path is not None and not Path(path).is_file():
            raise RequestError(f"{flag} {path}: no such file")
    return config


def _check_video(run: RunConfig) -> None:
    for flag, value in (("--video-interval", run.video_interval), ("--video-length-s", run.video_length_s)):
        if not value > 0:
            raise RequestError(f"{flag} {value}: must be more than 0")
    drawing_environ("cpu", os.environ)  # what is missing is said before anything starts


def preflight(config: TrainConfig) -> dict[str, Any]:
    """Find out what a run would meet on this machine, without writing anything.

    Returns:
        Usable cores, visible GPUs, versions of the packages that matter, and whether the log root can be written.
    """
    log_root = Path(config.run.log_root).absolute()
    existing = next(folder for folder in (log_root, *log_root.parents) if folder.exists())
    return {
        "num_cores": len(os.sched_getaffinity(0)),
        "num_visible_gpus": count_gpus(),
        "log_root": str(log_root),
        "log_root_writable": existing.is_dir() and os.access(existing, os.W_OK),
        "packages": _package_versions(),
    }


def start_training(config: TrainConfig, launch: LaunchConfig) -> "TrainResult":
    """Train as configured and return what the main rank returns; raises as `train` does."""
    config, job = resolve_requeue(config, launch, os.environ)
    hosts = find_hosts(launch, Path(config.run.log_root).absolute())
    plan = make_plan(launch, hosts=hosts)
    config = _complete(config, plan)
    record = {
        "env": to_plain(config.env),
        "agent": to_plain(config.agent),
    }  # what cannot be recorded is found before a run exists
    request = {**record, "run": to_plain(config.run)}
    meeting = gather(plan, json.dumps(request, indent=1))
    opened: ExitStack = ExitStack()
    with requeue_when_stopped(job if plan.leads else None), opened:
        if meeting is None:
            run = _open_run(config, launch, plan, record, None, opened)
        else:
            run = meeting.agree(lambda: _open_run(config, launch, plan, record, meeting.recall(), opened))
        run_dir = Path(run["run_dir"])
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, resume=run["resume"]))
        if run["again"]:
            plan = dataclasses.replace(plan, ranks=tuple(dataclasses.replace(rank, restarts=1) for rank in plan.ranks))
        plan = dataclasses.replace(plan, log_dir=make_plan(launch, run_dir, hosts).log_dir)
        return run_plan(
            plan,
            _train_rank,
            config,
            run_dir,
            meeting=meeting,
            crash_dir=run_dir / "crash",
            preload=("mjtrain.training",),
            on_restart=partial(_report_restart, run_dir, plan.max_restarts),
            saved_progress=partial(_saved_iteration, run_dir),
        )


def _open_run(
    config: TrainConfig,
    launch: LaunchConfig,
    plan: LaunchPlan,
    record: dict[str, Any],
    before: dict[str, Any] | None,
    opened: ExitStack,
) -> dict[str, Any]:
    """Decide where the run lives, for all ranks, and write down what will run.

    Args:
        config: What to train.
        launch: On which ranks.
        plan: The same, resolved.
        record: The same in plain values, by the file it goes to.
        before: What was decided before something else started this job again; None if it did not.
        opened: Takes what is to be given back when the run ends.

    Returns:
        `run_dir`, what to `resume`, and whether the job was started `again` and goes on with the last checkpoint there.
    """
    lines, done = [], 0
    if before is not None:
        run_dir, resume = Path(before["run_dir"]), before["resume"]
        run_dir.mkdir(parents=True, exist_ok=True)  # rank 0 may have come to another host; --checkpoint-url helps then
        done = _saved_iteration(run_dir)
        lines += [f"started again: going on from iteration {done}"]
        lost = max(0, last_iteration(run_dir) - done)
        write_event(run_dir, "restart", iteration=done, lost=lost, cause="started again from outside", time=time.time())
    else:
        run = open_run(config)
        config, run_dir, resume, done, lines = run.config, run.run_dir, run.config.run.resume, run.iteration, run.lines
        if run.checkpoint is not None:
            lines += [f"resuming from {_shorten(run.checkpoint)}"]
            lines += [f"changed since: {line}" for line in list_changes(run_dir, **record)]
    opened.enter_context(claim_run_dir(run_dir))
    save_params(
        run_dir,
        **record,
        launch={
            "task": config.task,
            "run": to_plain(config.run),
            "launch": to_plain(launch),
            "plan": to_plain(plan),
            "packages": _package_versions(),
            "git": read_git_state(Path.cwd()),
        },
    )
    _say(*plan.notices, *lines, describe(config, plan, done), f"run directory: {_shorten(run_dir)}")
    return {"run_dir": str(run_dir), "resume": resume, "again": before is not None}


def _report_restart(run_dir: Path, max_restarts: int, failure: "Failure", restart: int, back_off_s: float) -> None:
    """Say in one line, here and in metrics.jsonl, that the run is started again, from where and why."""
    iteration = _saved_iteration(run_dir)
    who = "the job" if failure.rank is None else f"rank {failure.rank} on host {failure.host}"
    cause = f"{who}: {failure.summary}"
    lost = max(0, last_iteration(run_dir) - iteration)
    facts = {"restart": restart, "iteration": iteration, "lost": lost, "wait_s": back_off_s, "cause": cause}
    write_event(run_dir, "restart", **facts, time=time.time())
    _say(f"restart {restart} of {max_restarts} in {back_off_s:g} s, from iteration {iteration}, after {cause}")


def _saved_iteration(run_dir: Path) -> int:
    checkpoint, _ = find_valid_checkpoint(run_dir)
    return 0 if checkpoint is None else checkpoint_iteration(checkpoint)


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)  # noqa: T201


def _package_versions() -> dict[str, str]:
    return {package: version(package) for package in RECORDED_PACKAGES}


def describe(config: TrainConfig, plan: LaunchPlan, done: int = 0) -> str:
    """Say in words what will run.

    Args:
        config: A run whose totals are resolved, see `resolve_training`.
        plan: Who runs where.
        done: Iterations that the run has already.
    """
    to_come = max(0, config.run.max_iterations - done)
    world_size, num_envs, num_steps = plan.world_size, config.run.num_envs, config.agent.num_steps_per_env
    device = plan.ranks[0].device
    engine = resolve_engine(config.run.engine, device)
    per_iteration = world_size * num_envs * num_steps
    ranks = f"1 rank on {device}" if world_size == 1 else f"{world_size} ranks on {device.partition(':')[0]}"
    return (
        f"{config.task}: {ranks} ({engine} engine) x {num_envs:,} envs x {num_steps} steps = {per_iteration:,} "
        f"env steps per iteration; {to_come:,} iterations to come, {per_iteration * to_come:,} env steps in all"
    )


def _shorten(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _train_rank(context: RankContext, config: TrainConfig, run_dir: Path) -> "TrainResult":
    from mjtrain.training import run_training  # seconds of imports, which only a rank needs

    return run_training(context, config, run_dir)
