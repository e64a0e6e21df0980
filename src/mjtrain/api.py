"""Train from Python."""

import json
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mjtrain.catalog import CUSTOM, load_task, resolve_task_name
from mjtrain.config import LaunchConfig, RunConfig, TaskConfig, TrainConfig, to_plain
from mjtrain.launcher import rendezvous, run_plan
from mjtrain.open_run import open_run, restart_reporter, saved_iteration
from mjtrain.rank import RankContext
from mjtrain.reporting.events import end_recorded
from mjtrain.request import TrainRequest, resolve_training, with_options
from mjtrain.runs.requeue import requeue_when_stopped
from mjtrain.runs.training_run import TrainingRun

if TYPE_CHECKING:
    from mjtrain.training import TrainResult


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
        RequestError: The request cannot be met; nothing is left of it.
        Exception: The first exception raised by any rank.
    """
    return start_training(make_train_config(task, **options), launch or LaunchConfig())


def make_train_config(task: str | TaskConfig, **options: Any) -> TrainConfig:
    """Complete a task to a run; arguments as those of `train`."""
    defaults = load_task(task) if isinstance(task, str) else task
    name = resolve_task_name(task) if isinstance(task, str) else defaults.name or CUSTOM
    env, agent = options.pop("env", defaults.env), options.pop("agent", defaults.agent)
    return TrainConfig(
        task=name,
        env=env,
        agent=agent,
        task_name=defaults.name,
        run=with_options(RunConfig(max_iterations=defaults.max_iterations), options),
        default_num_envs=defaults.num_envs,
        default_num_envs_gpu=defaults.num_envs_gpu,
    )


def start_training(config: TrainConfig, launch: LaunchConfig) -> "TrainResult":
    """Train as configured and return what the main rank returns; raises as `train` does."""
    request = resolve_training(config, launch)
    group = rendezvous(request.plan, _describe_for_others(request))
    with requeue_when_stopped(request.requeued_job if group.leads else None), ExitStack() as stack:

        def decide(previous: dict[str, Any] | None) -> dict[str, Any]:
            last = None if previous is None else TrainingRun.from_plain(previous)
            return stack.enter_context(open_run(request, last)).to_plain()

        run = TrainingRun.from_plain(group.agree(decide))
        if group.leads:
            stack.enter_context(end_recorded(run.run_dir))
        plan = request.plan.for_run(run.run_dir, restarts=int(run.restarted))
        return run_plan(
            plan,
            _train_rank,
            _with_robot(request.config, run.robot),
            run,
            rendezvous=group,
            crash_dir=run.run_dir / "crash",
            preload=("mjtrain.training",),
            on_restart=restart_reporter(run, plan.max_restarts),
            saved_progress=partial(saved_iteration, run.run_dir),
        )


def _with_robot(config: TrainConfig, copy: str | None) -> TrainConfig:
    """Replace the robot by the run's copy of it, if there is one to use instead."""
    return config if copy is None else replace(config, env=replace(config.env, robot=copy))


def _describe_for_others(request: TrainRequest) -> str:
    """Return, in lines, what must be the same on every node of a job."""
    return json.dumps({**request.params, "run": to_plain(request.config.run)}, indent=1)


def _train_rank(context: RankContext, config: TrainConfig, run: TrainingRun) -> "TrainResult":
    from mjtrain.training import train_rank  # seconds of imports, which only a rank needs

    return train_rank(context, config, run)
