"""One training run, as one rank sees it."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjtrain.config import TrainConfig
from mjtrain.engines import make_engine, resolve_engine
from mjtrain.env.env import Env
from mjtrain.rank import RankContext
from mjtrain.reporting.console import ProgressDisplay
from mjtrain.reporting.writers import make_writers
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
        run_dir: An existing folder. Only the main rank writes there.

    Returns:
        The same on every rank.
    """
    env = make_env(context, config)
    runner = Runner(context, env, config.agent)
    if config.run.load is not None:
        runner.load_weights(Path(config.run.load))
    infos = {"task": config.task}
    metrics: dict[str, Any] = {}
    with ExitStack() as stack:
        writers, display = [], None
        if context.is_main:
            writers = make_writers(config, run_dir)
            for writer in writers:
                stack.callback(writer.close)
            display = stack.enter_context(ProgressDisplay(config.run.max_iterations))
        try:
            for metrics in runner.iterate(config.run.max_iterations):
                if display is None:
                    continue
                display.update(metrics)
                for writer in writers:
                    writer.write(metrics)
                if runner.iteration % config.agent.save_interval == 0:
                    runner.save(checkpoint_path(run_dir, runner.iteration), infos)
        finally:  # also when the user has seen enough
            last = checkpoint_path(run_dir, runner.iteration)
            if context.is_main and runner.iteration and not last.exists():
                runner.save(last, infos)
    env.engine.close()
    return TrainResult(run_dir=run_dir, checkpoint=last, metrics=metrics)


def make_env(context: RankContext, config: TrainConfig) -> Env:
    """Build this rank's environments."""
    name = resolve_engine(config.run.engine, context.device)
    engine = make_engine(name, config.env, config.run.num_envs, context.device, context.num_threads)
    return Env(config.env, engine, context.seed)
