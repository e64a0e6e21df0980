"""One training run, as one rank sees it."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjtrain import pulse
from mjtrain.config import TrainConfig
from mjtrain.engines import make_engine, resolve_engine
from mjtrain.env.env import Env
from mjtrain.env.nan_guard import check_nan_resets
from mjtrain.rank import RankContext
from mjtrain.reporting.report import RunReport
from mjtrain.rl.runner import Runner
from mjtrain.run_dir import checkpoint_path


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a run came to."""

    run_dir: Path
    """Where it lives."""

    checkpoint: Path
    """The last one it saved."""

    metrics: dict[str, Any]
    """Those of the last iteration, as in metrics.jsonl."""


def run_training(context: RankContext, config: TrainConfig, run_dir: Path) -> TrainResult:
    """Build the environment and the agent, and learn.

    Args:
        context: This rank.
        config: What to train.
        run_dir: An existing folder. Only the main rank writes there, but for worlds that broke.

    Returns:
        The same on every rank.
    """
    pulse.beat("build")
    infos = {"task": config.task}
    metrics: dict[str, Any] = {}
    with ExitStack() as stack:
        env = make_env(context, config)
        stack.callback(env.engine.close)
        runner = Runner(context, env, config.agent)
        if config.run.load is not None:
            runner.load_weights(Path(config.run.load))
        report = stack.enter_context(RunReport(config, run_dir)) if context.is_main else None
        for metrics in runner.iterate(config.run.max_iterations):
            if report is not None:
                report.update(metrics)
            if metrics["nan_resets"]:
                env.dump_broken_worlds(run_dir / "nan", f"iteration_{runner.iteration}_rank_{context.rank}")
                check_nan_resets(metrics, config.env.nan_guard)
            is_last = runner.stop_requested or runner.iteration == config.run.max_iterations
            saves = is_last or _is_due(config.agent.save_interval, runner)
            if config.run.drift_check_interval and (saves or _is_due(config.run.drift_check_interval, runner)):
                runner.check_drift()
            if saves and context.is_main:
                pulse.beat("save")
                runner.save(checkpoint_path(run_dir, runner.iteration), infos)
            if is_last:
                break
    return TrainResult(run_dir=run_dir, checkpoint=checkpoint_path(run_dir, runner.iteration), metrics=metrics)


def _is_due(interval: int, runner: Runner) -> bool:
    return runner.iteration % interval == 0


def make_env(context: RankContext, config: TrainConfig) -> Env:
    """Build this rank's environments."""
    name = resolve_engine(config.run.engine, context.device)
    engine = make_engine(name, config.env, config.run.num_envs, context.device, context.num_threads)
    return Env(config.env, engine, context.seed)
