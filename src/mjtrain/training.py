"""One training run, as one rank sees it."""

import math
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjtrain import heartbeat
from mjtrain.checkpoint import checkpoint_path, find_valid_checkpoint, prune_checkpoints
from mjtrain.config import TrainConfig
from mjtrain.engines import make_engine, resolve_engine
from mjtrain.env.env import Env
from mjtrain.env.nan_guard import check_nan_resets
from mjtrain.rank import RankContext
from mjtrain.reporting.report import RunReport
from mjtrain.rl.runner import Runner
from mjtrain.storage import Uploader, UploadEvent, fetch_checkpoint, is_url

if TYPE_CHECKING:
    from mjtrain.video.video_hook import VideoHook


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
    heartbeat.beat("build", warming_up=True)
    metrics: dict[str, Any] = {}
    with ExitStack() as stack:
        env = make_env(context, config)
        stack.callback(env.engine.close)
        runner = Runner(context, env, config.agent)
        if config.run.load is not None:
            runner.load_weights(Path(config.run.load))
        notices = _resume(context, config, run_dir, runner)
        max_iterations = _last_iteration(config, runner)
        report = filming = None
        if context.is_main:
            report = stack.enter_context(RunReport(config, run_dir, runner.iteration, max_iterations))
            for notice in notices:
                report.warn(notice)
            filming = _film(stack, context, config, run_dir, env, report)
            if filming is not None:
                runner.after_step = filming.after_step
                filming.begin(runner.iteration)
        checkpoints = stack.enter_context(Checkpoints(config, run_dir, runner, report))
        for metrics in runner.iterate(max_iterations):
            is_last = runner.stop_requested or runner.iteration == max_iterations
            videos = []
            if filming is not None:
                costs, videos = filming.update(runner.iteration)
                metrics |= costs
            if report is not None:
                report.update(metrics)
                report.add_videos(videos)
            if metrics["nan_resets"]:
                env.dump_broken_worlds(run_dir / "nan", f"iteration_{runner.iteration}_rank_{context.rank}")
                check_nan_resets(metrics, config.env.nan_guard)
            saves = is_last or _is_due(config.agent.save_interval, runner)
            if saves:
                heartbeat.beat("save")
            if config.run.drift_check_interval and (saves or _is_due(config.run.drift_check_interval, runner)):
                runner.check_drift()
            if saves:
                checkpoints.save(is_last=is_last)
            checkpoints.report_uploads()
            if is_last:
                break
        if report is not None and filming is not None:
            report.add_videos(filming.finish())
        checkpoints.flush_uploads()
    return TrainResult(run_dir=run_dir, checkpoint=checkpoint_path(run_dir, runner.iteration), metrics=metrics)


def _resume(context: RankContext, config: TrainConfig, run_dir: Path, runner: Runner) -> list[str]:
    """Go on from the run's last valid checkpoint, if that is asked for or the job was started again.

    Returns:
        Lines about what could not be restored.
    """
    if config.run.resume is None and context.restarts == 0:
        return []
    path, lines = _find_checkpoint(config, run_dir) if context.is_main else (None, [])
    lost = runner.resume(path, config.task)
    return lines if lost is None else [*lines, lost]


def _film(
    stack: ExitStack, context: RankContext, config: TrainConfig, run_dir: Path, env: Env, report: RunReport
) -> "VideoHook | None":
    """Get ready to film, if that is asked for."""
    if not config.run.video:
        return None
    from mjtrain.video.video_hook import VideoHook

    return stack.enter_context(VideoHook(config, env, context.device, run_dir, report.warn))


def _find_checkpoint(config: TrainConfig, run_dir: Path) -> tuple[Path | None, list[str]]:
    """Find a run's last valid checkpoint: here, or else in the storage, as rank 0 may be on a new machine."""
    path, _ = find_valid_checkpoint(run_dir)
    for url in (config.run.checkpoint_url, config.run.resume):
        if path is None and isinstance(url, str) and is_url(url):
            path, lines = fetch_checkpoint(url, run_dir)
            if path is not None:
                return path, [*lines, f"{path.name} comes from {url}"]
    return path, []


def _last_iteration(config: TrainConfig, runner: Runner) -> int:
    """Return with which iteration the run ends; env steps done with another number of ranks count too."""
    if config.run.total_env_steps is None or runner.iteration == 0:
        return config.run.max_iterations
    left = max(0, config.run.total_env_steps - runner.env_steps_total)
    return runner.iteration + math.ceil(left / runner.env_steps_per_iteration)


class Checkpoints:
    """Saves a run now and then, and has the main rank upload what is saved. Use as a context manager.

    A failed save or upload is reported and ends nothing, unless it was the last chance to save.
    """

    def __init__(self, config: TrainConfig, run_dir: Path, runner: Runner, report: RunReport | None) -> None:
        """Prepare to save.

        Args:
            config: What is trained.
            run_dir: Where the run lives.
            runner: What is saved. If it goes on with a run, its checkpoint is uploaded first.
            report: Where problems are told; None on all ranks but the main one.
        """
        self._report = report
        self._infos = {"task": config.task}
        self._keep = config.run.keep_checkpoints
        self._run_dir = run_dir
        self._runner = runner
        self._flush_s = config.run.checkpoint_flush_s
        self._uploader: Uploader | None = None
        if report is not None and config.run.checkpoint_url is not None:
            self._uploader = Uploader(config.run.checkpoint_url, self._keep)
            if runner.iteration > 0:
                self._uploader.submit(checkpoint_path(run_dir, runner.iteration))

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._uploader is not None:
            self._uploader.close()

    def save(self, *, is_last: bool) -> None:
        """Save this iteration; every rank must call it.

        Args:
            is_last: Whether the run ends here.

        Raises:
            RuntimeError: The last iteration could not be saved.
        """
        path = checkpoint_path(self._run_dir, self._runner.iteration)
        try:
            self._runner.save(path, self._infos)
        except OSError as error:
            last = find_valid_checkpoint(self._run_dir)[0]
            kept = f"the last whole one is {last.name}" if last is not None else "there is none yet"
            problem = f"checkpoint {path} could not be written ({error.strerror}); {kept}"
            if is_last:
                raise RuntimeError(problem) from error
            if self._report is not None:
                self._report.warn(f"{problem}; training goes on")
            return
        if self._report is not None:
            self._report.add_checkpoint(path)
            prune_checkpoints(self._run_dir, self._keep)
        if self._uploader is not None:
            self._uploader.submit(path)

    def report_uploads(self) -> None:
        """Tell what has become of uploads; does not wait."""
        if self._uploader is not None:
            self._tell(self._uploader.poll_events())

    def flush_uploads(self) -> None:
        """Wait for the last upload, within --checkpoint-flush-s, and tell what has become of it."""
        if self._uploader is not None:
            self._tell(self._uploader.flush(self._flush_s))

    def _tell(self, events: list[UploadEvent]) -> None:
        assert self._report is not None
        for event in events:
            self._report.add_event(event.event, event.line, event.fields)


def _is_due(interval: int, runner: Runner) -> bool:
    return runner.iteration % interval == 0


def make_env(context: RankContext, config: TrainConfig) -> Env:
    """Build this rank's environments."""
    name = resolve_engine(config.run.engine, context.device)
    engine = make_engine(name, config.env, config.run.num_envs, context.device, context.num_threads)
    return Env(config.env, engine, context.seed)
