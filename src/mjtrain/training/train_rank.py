"""One training run, as one rank sees it."""

import socket
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mjtrain.config import EnvConfig, TrainConfig
from mjtrain.env.base import TaskEnv
from mjtrain.env.env import Env
from mjtrain.launcher.faults import register_targets
from mjtrain.learning.library import make_learner
from mjtrain.learning.loop import TrainingLoop
from mjtrain.runs.checkpoint import checkpoint_iteration, checkpoint_path, find_valid_checkpoint, set_damaged_aside
from mjtrain.runs.claim import begin_start, check_claim
from mjtrain.runs.run_dir import naming_unwritable, remove_leftovers
from mjtrain.runs.storage.checkpoints import (
    TakenError,
    fetch_checkpoint,
    find_stored_iteration,
    read_owner,
    take_url,
)
from mjtrain.runs.storage.store import Storage, StorageError, StorageRefusedError, is_url
from mjtrain.runs.training_run import TrainingRun, record_run
from mjtrain.runtime import files, heartbeat
from mjtrain.runtime.errors import RequestError, count
from mjtrain.runtime.rank import RankContext
from mjtrain.runtime.worker import Stream, derive_seed, torch_defaults
from mjtrain.sim.engines import make_engine
from mjtrain.training.hooks import HookContext, make_hooks
from mjtrain.training.preflight.run_size import find_last_iteration, fit_to_ranks
from mjtrain.training.reporting.report import RunReport


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a training returns."""

    run_dir: Path
    """Where the run lives."""

    checkpoint: Path
    """The last one it saved."""

    metrics: dict[str, Any]
    """Those of the last iteration, as in metrics.jsonl; empty if the run did none before it ended."""

    ended_by: str | None = None
    """The condition of --stop-when that ended it early, and the value that met it; None for nothing."""


@torch_defaults()
@torch.inference_mode(mode=False)  # which also records gradients
def train_rank(context: RankContext, config: TrainConfig, run: TrainingRun) -> TrainResult:
    """Build environments and learner, restore them, and learn; every rank calls it.

    Nothing is written before it is known that robot, networks and checkpoint fit.
    """
    heartbeat.beat("build", warming_up=True)
    config, resized = fit_to_ranks(config, context.world_size, context.device)
    metrics: dict[str, Any] = {}
    with ExitStack() as stack:
        if isinstance(config.env, EnvConfig):
            from mjtrain.sim.robots.model import without_warnings

            stack.enter_context(without_warnings())  # they are metrics, and a line each
        env = make_rank_env(context, config)
        stack.callback(env.close)
        learner = make_learner(context, env, config.agent, config.learner)
        register_targets(env, learner, lambda iteration: checkpoint_path(run.run_dir, iteration))
        notices = [*resized, *restore(learner, context, config, run)]
        done = learner.iteration, learner.env_steps_total
        last_iteration = find_last_iteration(config, context.world_size, *done)
        report = None
        if context.is_main:
            if config.run.checkpoint_url is not None and context.restarts == 0:
                _take_url(config.run.checkpoint_url, run)
            begin_start(run.run_dir, run.session, context.restarts)
            files.guards[run.run_dir] = partial(check_claim, run.run_dir, run.session, context.restarts)
            stack.callback(files.guards.pop, run.run_dir, None)
            with naming_unwritable(run.run_dir):
                remove_leftovers(run.run_dir)
                notices += record_run(run, config, context.left_out)
            notices += set_damaged_aside(run.run_dir, learner.iteration)
            report = stack.enter_context(RunReport(config, run.run_dir, learner.iteration, last_iteration))
            for notice in notices:
                report.warn(notice)
        hook_context = HookContext(
            rank_context=context,
            config=config,
            run_dir=run.run_dir,
            claim=run.session,
            is_new=_is_new(run),
            env=env,
            learner=learner,
            last_iteration=last_iteration,
            report=report,
        )
        hooks = [stack.enter_context(hook) for hook in make_hooks(hook_context)]
        for result in learner.iterate(learner.iteration if hook_context.ended_by else last_iteration):
            metrics = result.metrics
            for hook in hooks:
                hook.after_iteration(result)
            if result.is_last or hook_context.is_paused:
                break
        heartbeat.current.paused = hook_context.is_paused
        for hook in hooks:
            hook.finish()
    return TrainResult(
        run_dir=run.run_dir,
        checkpoint=checkpoint_path(run.run_dir, learner.iteration),
        metrics=metrics,
        ended_by=hook_context.ended_by,
    )


def _is_new(run: TrainingRun) -> bool:
    return run.resume is None and not run.restarted


def _take_url(url: str, run: TrainingRun) -> None:
    """Record in the storage that this run uploads there; a storage that cannot be reached now is asked again later."""
    if not run.session:
        return
    try:
        take_url(Storage(url), run.session, run.run_dir.name, is_new=_is_new(run))
    except (TakenError, StorageRefusedError) as error:
        raise RequestError(f"--checkpoint-url {url}: {error}") from error
    except StorageError:
        return


def make_rank_env(context: RankContext, config: TrainConfig) -> TaskEnv:
    """Build this rank's environments, native or external."""
    if isinstance(config.env, EnvConfig):
        return make_env(context, config)
    from mjtrain.env.external.env import closing_on_error, make_foreign_env
    from mjtrain.training.preflight.network_check import check_agent

    env = make_foreign_env(config.env, config.num_envs, context.device, derive_seed(context.seed, Stream.WORLDS))
    with closing_on_error(env):
        check_agent(env, config.agent, config.num_envs)
    return env


def make_env(context: RankContext, config: TrainConfig) -> Env:
    """Build this rank's worlds."""
    if not isinstance(config.env, EnvConfig):
        raise RequestError(
            f"{config.env.label}: is an external environment; make_env and make_vec build mjtrain's tasks"
        )
    engine = make_engine(config.run.engine, config.env, config.num_envs, context.device, context.num_threads)
    seed = derive_seed(context.seed, Stream.WORLDS)
    return Env(config.env, engine, seed, first_world=context.rank * config.num_envs)


def restore(learner: TrainingLoop, context: RankContext, config: TrainConfig, run: TrainingRun) -> list[str]:
    """Load the run's newest valid checkpoint if it is resumed or was restarted, or else what --load asks for."""
    continues = run.resume is not None or context.restarts > 0
    path, lines = _find_checkpoint(config, context, run) if continues and context.is_main else (None, [])
    has_own = continues and learner.agree(path is not None or not context.is_main)
    if config.run.load is not None and not has_own:  # its file may be gone by now
        critic = config.run.load_critic
        learner.load_weights(Path(config.run.load), None if critic is None else Path(critic))
    if not continues:
        return []
    lost = learner.resume(path, config.task)
    return lines if lost is None else [*lines, lost]


def _find_checkpoint(config: TrainConfig, context: RankContext, run: TrainingRun) -> tuple[Path | None, list[str]]:
    """Find the newest valid checkpoint: here, or in the storage, as rank 0 may be on another host now."""
    path, _ = find_valid_checkpoint(run.run_dir)
    local, lines = 0 if path is None else checkpoint_iteration(path), []
    # The disk of a host that comes back may hold only what was saved before it was lost.
    may_be_old = context.restarts > 0 and run.record.get("plan", {}).get("mode") in ("hosts", "node", "join")
    for url in dict.fromkeys((config.run.checkpoint_url, run.resume)):
        if url is None or not is_url(url) or (path is not None and local >= run.iteration and not may_be_old):
            continue
        try:
            if path is not None and find_stored_iteration(url) <= local:
                continue
            owner = read_owner(Storage(url))[0] if path is not None and context.restarts > 0 else None
            if owner is not None and owner.run != run.run_dir.name:
                continue  # another run has taken the URL since
            with naming_unwritable(run.run_dir):
                is_copied = config.run.checkpoint_url not in (None, url)
                fetched, problems = fetch_checkpoint(url, run.run_dir, is_copied=is_copied)
        except StorageError as error:
            if path is None:
                raise
            lines.append(f"{url}: not reached ({error}); resuming what is here")
            continue
        lines += problems
        if fetched is not None and checkpoint_iteration(fetched) > local:
            path, local = fetched, checkpoint_iteration(fetched)
            lines.append(f"{path.name} comes from {url}")
    if local < run.iteration and (path is None or context.restarts == 0):
        raise RequestError(
            f"{run.run_dir}: the run has {count(run.iteration, 'iteration')}, and host {socket.gethostname()}, where "
            f"rank 0 is, has {local} of them; use a disk that all hosts share, or a storage (--checkpoint-url)"
        )
    return path, lines
