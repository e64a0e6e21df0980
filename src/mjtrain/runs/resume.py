"""Which run a command resumes, or a new one, with which learner; and Slurm jobs that are queued again to resume."""

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from mjtrain.config import DEFAULT_LEARNER, LaunchConfig, LearnerConfig, TrainConfig
from mjtrain.env.catalog import is_same_task
from mjtrain.launcher import NotSavedError
from mjtrain.runs.checkpoint import checkpoint_iteration, find_valid_checkpoint, load_checkpoint, taking_apart
from mjtrain.runs.history import (
    RunSearch,
    find_run_to_resume,
    find_runs,
    list_records,
    read_starts,
    read_task,
    recorded_task,
)
from mjtrain.runs.robot import check_robot_file
from mjtrain.runs.run_dir import (
    SettingsLoader,
    experiment_dir,
    make_run_dir,
    name_run_dir,
    naming_unwritable,
    parse_yaml,
    read_given_yaml,
    read_learner,
    read_recorded,
    removing_empty,
    removing_on_refusal,
)
from mjtrain.runs.storage.checkpoints import fetch_checkpoint, find_stored_iteration
from mjtrain.runs.storage.store import Storage, StorageError, StorageRefusedError, check_url, is_url, local_folder
from mjtrain.runtime.errors import OutsideError, RequestError, count
from mjtrain.runtime.machine import is_writable, nearest_existing
from mjtrain.runtime.standard_streams import write_to_stderr

_REQUEUING = {128 + signal.SIGTERM, 128 + signal.SIGUSR1, 128 + signal.SIGUSR2}
"""Statuses of a run that was stopped by what Slurm sends before the end."""

_FINDING = ("checkpoint_url", "run_name")
"""Settings of a run by which --resume auto finds it."""

_PATIENCE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class FoundRun:
    """The directory of a run, new or not."""

    run_dir: Path
    """It exists."""

    checkpoint: Path | None = None
    """Checkpoint from which the run is resumed; None for a new run."""

    resume: str | None = None
    """What is resumed: the run directory or the URL of a stored run. None for a new run."""

    made: tuple[Path, ...] = ()
    """Directories that were made for it, the deepest first."""

    notices: tuple[str, ...] = ()

    stored: int = 0
    """Iterations that it has in a storage from which nothing was fetched."""

    @property
    def iteration(self) -> int:
        """Iterations that it has already."""
        return self.stored if self.checkpoint is None else checkpoint_iteration(self.checkpoint)

    @cached_property
    def env_steps(self) -> int:
        """Env steps that its checkpoint has, which is read; 0 without one."""
        if self.checkpoint is None:
            return 0
        with taking_apart(load_checkpoint(self.checkpoint, "cpu"), self.checkpoint) as parts:
            return int(parts.get("infos", {}).get("env_steps_total", 0))


def preview_run(config: TrainConfig, *, has_rank_0: bool = True) -> FoundRun:
    """Check what `find_or_make_run` checks, without writing anything or asking a bucket at --checkpoint-url.

    Returns the run on this machine that would be resumed, or a new one whose directory does not exist yet.
    """
    if _names_local_run(config):
        found = find_local_run(config)
        if config.run.checkpoint_url is None or local_folder(config.run.checkpoint_url) is None:
            return found
        return replace(found, notices=(*found.notices, *_check_vacant(config, found.run_dir, has_rank_0=has_rank_0)))
    own = _find_own_checkpoint(config) if config.run.resume == "auto" else None
    stored, notices, url = 0, [], config.run.checkpoint_url
    with _naming_url(config):
        if is_url(config.run.resume):
            if not (stored := find_stored_iteration(str(config.run.resume))):
                raise RequestError(f"--resume {config.run.resume}: no checkpoint found")
            _check_iterations(config, stored)
        elif own is not None:
            _check_same_learner(config, own.parent)
        elif url is None or local_folder(url) is None:
            pass  # this machine may lack the credentials of a bucket, which the ranks have
        elif config.run.resume is None:
            notices = _check_vacant(config, has_rank_0=has_rank_0)
        else:
            stored = find_stored_iteration(url)
    if own is not None:
        return FoundRun(run_dir=own.parent, checkpoint=own)
    folder = experiment_dir(config)
    if not is_writable(folder):
        reason = f"{nearest_existing(folder)} is not a folder in which this user may write"
        raise RequestError(f"--log-root {config.run.log_root}: cannot be written ({reason})")
    return FoundRun(run_dir=name_run_dir(config), stored=stored, notices=tuple(notices))


def find_resumed_here(config: TrainConfig) -> Path | None:
    """Return the run on this machine that will be resumed; None for a new run, or for one that is not here."""
    if config.run.resume == "auto":
        checkpoint = _find_own_checkpoint(config)
        return None if checkpoint is None else checkpoint.parent
    with contextlib.suppress(RequestError):  # said later, by what opens the run
        return find_run_to_resume(config)[0] if _names_local_run(config) else None
    return None


def is_resumed(config: TrainConfig) -> bool:
    """Return whether a run will be resumed; --resume auto also asks the storage at --checkpoint-url."""
    run = config.run
    if run.resume != "auto" or find_resumed_here(config) is not None:
        return run.resume is not None
    try:
        return run.checkpoint_url is not None and find_stored_iteration(run.checkpoint_url) > 0
    except StorageError:  # said later, by what opens the run
        return True


def _names_local_run(config: TrainConfig) -> bool:
    resume = config.run.resume
    return resume is not None and resume != "auto" and not is_url(resume)


def check_urls(config: TrainConfig) -> TrainConfig:
    """Bring the URLs of a request into their usual form, without asking any storage."""
    run = config.run
    url = None if run.checkpoint_url is None else check_url("--checkpoint-url", run.checkpoint_url)
    resume = check_url("--resume", run.resume) if isinstance(run.resume, str) and is_url(run.resume) else run.resume
    return replace(config, run=replace(run, checkpoint_url=url, resume=resume))


def find_or_make_run(config: TrainConfig, *, has_rank_0: bool = True) -> FoundRun:
    """Find the directory of the run that --resume and --checkpoint-url ask for, or make one.

    Args:
        has_rank_0: Whether rank 0 will be on this machine. If not, it has other settings of the storage, and refuses
            a --checkpoint-url that does not work there.
    """
    resume = config.run.resume
    with _naming_url(config):
        if resume == "auto":
            return _find_own(config)
        if resume is None:
            return _make_new(config, *_check_vacant(config, has_rank_0=has_rank_0))
        if is_url(resume):
            _check_iterations(config, find_stored_iteration(str(resume)))
            return _download(config, str(resume), has_rank_0=has_rank_0)
        found = find_local_run(config)
        return replace(found, notices=(*found.notices, *_check_vacant(config, found.run_dir, has_rank_0=has_rank_0)))


@contextlib.contextmanager
def _naming_url(config: TrainConfig) -> Iterator[None]:
    """Name the flag and the URL in errors of the storage."""
    try:
        yield
    except StorageError as error:
        url = config.run.resume if is_url(config.run.resume) else config.run.checkpoint_url
        flag = "--resume" if is_url(config.run.resume) else "--checkpoint-url"
        kind = RequestError if isinstance(error, StorageRefusedError) else StorageError
        raise kind(f"{flag} {url}: {error}") from error


def find_local_run(config: TrainConfig) -> FoundRun:
    """Find the run on this machine that --resume asks for."""
    run_dir, checkpoint, lines = find_run_to_resume(config)
    _check_same_learner(config, run_dir)
    _check_iterations(config, checkpoint_iteration(checkpoint))
    found = FoundRun(run_dir=run_dir, checkpoint=checkpoint, resume=str(run_dir), notices=tuple(lines))
    _check_env_steps(config, found)
    return found


def _make_new(config: TrainConfig, *notices: str) -> FoundRun:
    check_robot_file(config.env.robot)
    return _make(config, *notices)


def _make(config: TrainConfig, *notices: str) -> FoundRun:
    folder = experiment_dir(config)
    missing = tuple(parent for parent in (folder, *folder.parents) if not parent.exists())
    with removing_empty(missing):  # on a full disk, the last one may fail where the others were made
        run_dir = make_run_dir(config)
    return FoundRun(run_dir=run_dir, made=(run_dir, *missing), notices=notices)


def _check_vacant(config: TrainConfig, run_dir: Path | None = None, *, has_rank_0: bool) -> list[str]:
    """Refuse a --checkpoint-url where a run is, other than the one in `run_dir` if that is resumed."""
    url = config.run.checkpoint_url
    if url is None:
        return []
    try:
        stored = find_stored_iteration(url)
        is_own = stored > 0 and run_dir is not None and _is_of_run(_read_stored_launch(url), run_dir)
    except StorageError as error:
        if has_rank_0 and isinstance(error, StorageRefusedError):
            raise RequestError(f"--checkpoint-url {url}: {error}") from error
        return [f"--checkpoint-url {url}: not reached yet ({error}); uploads are tried all the same"]
    if stored and not is_own:
        which = "a run" if run_dir is None else "another run"
        raise RequestError(
            f"--checkpoint-url {url}: {which} with {count(stored, 'iteration')} is there; resume it (--resume {url}, "
            "or --resume auto), or give another URL"
        )
    return []


def _read_stored_launch(url: str) -> dict[str, Any]:
    """Return the params/launch.yaml that is stored below a URL; empty where it is missing or cannot be read."""
    found = Storage(url).read("params/launch.yaml")
    with contextlib.suppress(yaml.YAMLError):
        content = None if found is None else parse_yaml(found[0])
        return content if isinstance(content, dict) else {}
    return {}


def _is_of_run(stored: dict[str, Any], run_dir: Path) -> bool:
    """Whether a stored params/launch.yaml and a run have a start in common, or the same task if either has no times."""
    theirs, ours = (read_starts(records, "begun", "started") for records in ([stored], list_records(run_dir)))
    if theirs and ours:
        return not set(theirs).isdisjoint(ours)
    task, own = recorded_task(stored), read_task(run_dir)
    return task is None or own is None or is_same_task(task, own)


def _download(config: TrainConfig, url: str, *, has_rank_0: bool = True) -> FoundRun:
    found = _make(config)
    with (
        removing_on_refusal(found.run_dir, found.made, started="", errors=(RequestError, OutsideError)),
        naming_unwritable(found.run_dir),
    ):
        checkpoint, lines = fetch_checkpoint(url, found.run_dir, is_copied=config.run.checkpoint_url not in (None, url))
        if checkpoint is None:
            raise RequestError(f"--resume {url}: {'; '.join(lines) or 'no checkpoint found'}")
        found = replace(found, checkpoint=checkpoint, resume=url, notices=(*lines, f"downloaded from {url}"))
        if url == config.run.resume:
            _check_env_steps(config, found)
            vacant = _check_vacant(config, found.run_dir, has_rank_0=has_rank_0)
            found = replace(found, notices=(*found.notices, *vacant))
    return found


def _find_own(config: TrainConfig) -> FoundRun:
    """Find the run that the same command started before, where most of it is, or make a new one."""
    # A run that is complete already is not an error: what starts commands again may do so once too often.
    url = config.run.checkpoint_url
    own = _find_own_checkpoint(config)
    if own is not None:
        _check_same_learner(config, own.parent)
    local = 0 if own is None else checkpoint_iteration(own)
    stored, lines = 0, ()
    if url is not None:
        try:
            stored = find_stored_iteration(url)
        except StorageError as error:
            if own is None or isinstance(error, StorageRefusedError):
                raise  # a new run where an old one may be would lose it
            lines = (f"--checkpoint-url {url}: not reached ({error}); resuming what is here",)
    if url is not None and stored > local:
        try:
            found = _download(config, url)
        except RequestError as error:  # all that is there is damaged
            if own is None:
                raise
            lines = (str(error),)
        else:
            if found.iteration > local:
                return found
            shutil.rmtree(found.run_dir)  # what is newer there is damaged
            lines = found.notices
    if own is not None:
        return FoundRun(run_dir=own.parent, checkpoint=own, resume=str(own.parent), notices=lines)
    return _make_new(config, "--resume auto: nothing to resume, so this is a new run")


def _find_own_checkpoint(config: TrainConfig) -> Path | None:
    """Find the newest valid checkpoint that commands with this URL and run name saved here, first of this learner."""
    search, of_others = RunSearch.for_training(config), None
    for run_dir in find_runs(search):
        if run_dir.parent != search.folder:
            continue  # --agent.experiment-name is part of a command
        kept, run = read_recorded(run_dir, "found_by"), read_recorded(run_dir, "run")
        commands = [_finding_flags(part) for part in (kept, run) if part]
        if kept and not any(commands[-1].values()):
            commands.pop()  # resumed by hand, without flags, which are those of every other command
        if {name: getattr(config.run, name) for name in _FINDING} in commands:
            checkpoint, _ = find_valid_checkpoint(run_dir)
            if checkpoint is not None and is_of_learner(run_dir, config.learner.name, if_damaged=True):
                return checkpoint
            of_others = of_others or checkpoint
    return of_others


def is_of_learner(run_dir: Path, name: str, *, if_damaged: bool = False) -> bool:
    """Return whether a run recorded this learner; `if_damaged` where its record cannot be read."""
    with contextlib.suppress(ValueError):  # which RequestError is too
        return read_learner(run_dir).name == name
    return if_damaged


def _finding_flags(run: Mapping[str, Any]) -> dict[str, Any]:
    return {name: run.get(name) for name in _FINDING}


def find_kept_flags(found: FoundRun, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return by which flags --resume auto still finds a run that is resumed in its directory, beside those of `run`.

    They are those of the command that started it, if `run` leaves some of them out.
    """
    if found.resume != str(found.run_dir):
        return {}
    before = _finding_flags(read_recorded(found.run_dir, "found_by") or read_recorded(found.run_dir, "run"))
    return {"found_by": before} if any(before[name] and not run[name] for name in _FINDING) else {}


def _check_same_learner(config: TrainConfig, run_dir: Path) -> None:
    theirs = read_learner(run_dir).name
    if theirs != config.learner.name:
        raise RequestError(
            f"--learner {config.learner.name}: {run_dir} was trained with {theirs}, and is resumed with that only"
        )


def _check_iterations(config: TrainConfig, done: int) -> None:
    if config.run.total_env_steps is None and done >= config.run.max_iterations:
        raise RequestError(f"--max-iterations {config.run.max_iterations}: the run has {done} already; ask for more")


def _check_env_steps(config: TrainConfig, found: FoundRun) -> None:
    asked = config.run.total_env_steps
    if asked is not None and found.env_steps >= asked:
        raise RequestError(f"--total-env-steps {asked}: the run has {found.env_steps} already; ask for more")


def resolve_requeue(
    config: TrainConfig, launch: LaunchConfig, environ: Mapping[str, str]
) -> tuple[TrainConfig, str | None]:
    """Decide by --requeue-on-signal what to resume, which the same job started before, and which job to requeue."""
    if not launch.requeue_on_signal:
        return config, None
    job = environ.get("SLURM_JOB_ID")
    if job is None:
        raise RequestError("--requeue-on-signal: this is not a Slurm job (SLURM_JOB_ID is not set)")
    run = config.run
    if run.resume is None:
        run = replace(run, resume="auto", run_name=run.run_name or f"slurm-{job}")
    array, element = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    # The number of the last element is also that of the whole array, which would be requeued.
    return replace(config, run=run), f"{array}_{element}" if array and element else job


@contextlib.contextmanager
def requeue_when_stopped(job: str | None) -> Iterator[None]:
    """Queue a Slurm job again if SIGTERM, SIGUSR1 or SIGUSR2 stops the run of a with block, saved or not."""
    try:
        yield
    except SystemExit as stop:
        status = 128 + stop.signum if isinstance(stop, NotSavedError) else stop.code
        if job is not None and status in _REQUEUING:
            _requeue(job)
        raise


def _requeue(job: str) -> None:
    write_to_stderr(f"requeueing Slurm job {job}")
    try:
        done = subprocess.run(
            ["scontrol", "requeue", job], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
        problem = done.stderr.strip() if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        write_to_stderr(f"warning: job {job} could not be requeued: {problem}")


def resolve_learner(config: TrainConfig) -> TrainConfig:
    """Fill in the learner of a training: the one that was asked for, or that of the run that is resumed."""
    run = config.run
    resumed = find_resumed_here(config) if not run.learner and _names_local_run(config) else None
    name = run.learner or (DEFAULT_LEARNER if resumed is None else read_learner(resumed).name)
    settings = {} if run.learner_config is None else _read_learner_settings(run.learner_config)
    return replace(config, run=replace(run, learner=name), learner=LearnerConfig(name=name, settings=settings))


def _read_learner_settings(file: str) -> dict[str, Any]:
    flag = f"--learner-config {file}"
    content = read_given_yaml(Path(file), flag, SettingsLoader)
    if content is not None and not isinstance(content, dict):
        raise RequestError(f"{flag}: holds {content!r}; give settings as name: value")
    for name in content or {}:
        if not isinstance(name, str):
            raise RequestError(f"{flag}: has the name {name!r}, which is not text")
    return content or {}
