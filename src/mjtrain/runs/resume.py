"""Which run a command goes on with, or a new one."""

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path

from mjtrain.checkpoint import checkpoint_iteration, find_valid_checkpoint
from mjtrain.config import RunToResume, TrainConfig
from mjtrain.errors import RequestError
from mjtrain.runs.run_dir import experiment_dir, find_run, make_run_dir, read_params
from mjtrain.storage import StorageError, check_url, fetch_checkpoint, find_stored_iteration, is_url


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A run that is about to be trained."""

    config: TrainConfig
    """The same as asked for, with the URLs in order and --resume auto decided."""

    run_dir: Path
    """Its directory, which exists."""

    checkpoint: Path | None
    """What it goes on from; None for a new run."""

    lines: list[str]
    """What the user should know."""

    @property
    def iteration(self) -> int:
        """Iterations it has already."""
        return 0 if self.checkpoint is None else checkpoint_iteration(self.checkpoint)


def names_local_run(resume: RunToResume) -> bool:
    """Whether --resume means a run directory that must be on this machine."""
    return resume is not None and resume != "auto" and not is_url(resume)


def check_urls(config: TrainConfig) -> TrainConfig:
    """Bring the URLs of a request into their usual form, without asking any storage.

    Raises:
        RequestError: One is wrong, or obstore is missing.
    """
    run = config.run
    url = None if run.checkpoint_url is None else check_url("--checkpoint-url", run.checkpoint_url)
    resume = check_url("--resume", run.resume) if isinstance(run.resume, str) and is_url(run.resume) else run.resume
    return dataclasses.replace(config, run=dataclasses.replace(run, checkpoint_url=url, resume=resume))


def open_run(config: TrainConfig) -> OpenRun:
    """Find or make the directory of the run that --resume and --checkpoint-url ask for.

    Args:
        config: As `check_urls` returns it.

    Raises:
        RequestError: There is no such run, it is complete, or a new one would get into the way of a stored one.
        StorageError: The storage cannot be reached, and what is there decides.
    """
    if config.run.resume == "auto":
        return _open_auto(config)
    if config.run.resume is None:
        return _open_new(config, *_check_vacant(config))
    if is_url(config.run.resume):
        _check_iterations(config, find_stored_iteration(str(config.run.resume)))
        return _open_stored(config)
    run_dir, checkpoint, lines = find_run(config)
    _check_iterations(config, checkpoint_iteration(checkpoint))
    return OpenRun(config=config, run_dir=run_dir, checkpoint=checkpoint, lines=lines)


def _open_new(config: TrainConfig, *lines: str) -> OpenRun:
    if not Path(config.env.robot).is_file():
        raise RequestError(f"--env.robot {config.env.robot}: no such file")
    return OpenRun(config=config, run_dir=make_run_dir(config), checkpoint=None, lines=list(lines))


def _check_vacant(config: TrainConfig) -> list[str]:
    """Refuse a --checkpoint-url where another run is; one that cannot be asked now may answer later."""
    url = config.run.checkpoint_url
    if url is None:
        return []
    try:
        stored = find_stored_iteration(url)
    except StorageError as error:
        return [f"--checkpoint-url {url}: not reached yet ({error}); uploads are tried all the same"]
    if stored:
        raise RequestError(
            f"--checkpoint-url {url}: a run with {stored} iterations is there; go on with it (--resume {url}, or "
            "--resume auto), or give another URL"
        )
    return []


def _open_stored(config: TrainConfig) -> OpenRun:
    """Download a run's newest checkpoint into a new run directory."""
    url = config.run.resume
    assert isinstance(url, str)
    run_dir = make_run_dir(config)
    try:
        checkpoint, lines = fetch_checkpoint(url, run_dir)
        if checkpoint is None:
            raise RequestError(f"--resume {url}: {'; '.join(lines) or 'there is no checkpoint'}")
    except (RequestError, StorageError):
        shutil.rmtree(run_dir)
        raise
    return OpenRun(config=config, run_dir=run_dir, checkpoint=checkpoint, lines=[*lines, f"downloaded from {url}"])


def _open_auto(config: TrainConfig) -> OpenRun:
    """Go on with what this very command has begun before, wherever most of it is, or begin.

    A run that is complete already is no error: whatever starts commands again may do so once too often.
    """
    url = config.run.checkpoint_url
    mine = _find_mine(config)
    local = 0 if mine is None else checkpoint_iteration(mine)
    stored, lines = 0, []
    if url is not None:
        try:
            stored = find_stored_iteration(url)
        except StorageError as error:
            if mine is None:
                raise  # a new run where an old one may be would lose it
            lines = [f"--checkpoint-url {url}: not reached ({error}); going on with what is here"]
    if stored > local:
        try:
            run = _open_stored(_resuming(config, url))
        except RequestError as error:  # all that is there is damaged
            if mine is None:
                raise
            lines = [str(error)]
        else:
            if run.iteration > local:
                return run
            shutil.rmtree(run.run_dir)  # what is newer there is damaged
            lines = run.lines
    if mine is not None:
        run_dir = mine.parent
        return OpenRun(config=_resuming(config, str(run_dir)), run_dir=run_dir, checkpoint=mine, lines=lines)
    return _open_new(_resuming(config, None), "--resume auto: nothing to go on with, so this is a new run")


def _resuming(config: TrainConfig, resume: str | None) -> TrainConfig:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, resume=resume))


def _find_mine(config: TrainConfig) -> Path | None:
    """Find the newest valid checkpoint of the runs that commands with this URL and run name have begun here."""
    for run_dir in sorted(filter(Path.is_dir, experiment_dir(config).glob("*")), reverse=True):
        run = read_params(run_dir, "launch").get("run", {})
        if (run.get("checkpoint_url"), run.get("run_name")) == (config.run.checkpoint_url, config.run.run_name):
            checkpoint, _ = find_valid_checkpoint(run_dir)
            if checkpoint is not None:
                return checkpoint
    return None


def _check_iterations(config: TrainConfig, done: int) -> None:
    if config.run.total_env_steps is None and done >= config.run.max_iterations:
        raise RequestError(f"--max-iterations {config.run.max_iterations}: the run has {done} already; ask for more")
