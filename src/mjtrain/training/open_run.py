"""From a request to a run: its directory is found or made, and what will happen is printed."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjtrain.config import RobotConfig, to_plain
from mjtrain.env.catalog import task_file
from mjtrain.launcher import NotSavedError
from mjtrain.runs.checkpoint import checkpoint_iteration, find_valid_checkpoint, list_checkpoints
from mjtrain.runs.claim import check_claim, claim_run_dir
from mjtrain.runs.history import list_records, read_last_row, read_starts
from mjtrain.runs.resume import FoundRun, find_kept_flags, find_or_make_run
from mjtrain.runs.robot import choose_robot, list_robot_changes
from mjtrain.runs.run_dir import NotWrittenError, list_changes, removing_empty, removing_on_refusal
from mjtrain.runs.sources import find_copies, list_code, list_code_changes, list_data_changes
from mjtrain.runs.storage.store import is_url
from mjtrain.runs.training_run import TrainingRun, read_git_state
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.event_log import mark_injected, write_event
from mjtrain.runtime.files import shorten
from mjtrain.runtime.machine import installed_packages
from mjtrain.runtime.standard_streams import printable, write_to_stderr
from mjtrain.training.request import TrainRequest

if TYPE_CHECKING:
    from mjtrain.launcher.failure import Failure
    from mjtrain.launcher.planning.membership import Change


@contextmanager
def open_run(request: TrainRequest, previous: TrainingRun | None) -> Iterator[TrainingRun]:
    """Find or make the run directory, and hold it for the length of a with block. Only the leader of a job does this.

    A request that is refused before the first iteration leaves nothing behind: a directory that was made is removed,
    and one that was there is as it was. `previous` is what the job decided before something outside restarted it.
    """
    has_rank_0 = request.plan.mode != "hosts"
    found = find_or_make_run(request.config, has_rank_0=has_rank_0) if previous is None else _reopen(previous)
    started = datetime.now().astimezone().isoformat(timespec="milliseconds")
    with (
        removing_empty(found.made),  # if the disk has no room for the claim
        claim_run_dir(found.run_dir) as (session, notices),
        removing_on_refusal(found.run_dir, found.made, started, (RequestError, NotWrittenError)),
    ):
        request = request.fit_to_run(found)
        run, lines = _make_run(request, found, previous, started, session)
        if run.restarted:
            cause = f"started again from outside{mark_injected(run.run_dir)}"
            _write_restart(run.run_dir, found.iteration, cause)
        tell(*request.notices, *notices, *found.notices, *lines)
        tell(request.describe(found.iteration), request.describe_learning(found.iteration))
        tell(f"run directory: {shorten(run.run_dir)}")
        yield run


def _make_run(
    request: TrainRequest, found: FoundRun, previous: TrainingRun | None, started: str, session: str
) -> tuple[TrainingRun, list[str]]:
    robot, robot_notices = choose_robot(found.run_dir, request.config.env.robot)
    code = list_code(request.config.env, task_file(request.config.task))
    copies = find_copies(found.run_dir)
    motions = {name: copies.get(name, file) for name, file in request.motions.items()}
    own = [f"motion {name}: the run's copy is used" for name in motions if motions[name] != request.motions[name]]
    lines = [*_describe_resumption(request, found, previous, robot, code, motions), *own, *robot_notices]
    run = TrainingRun(
        run_dir=found.run_dir,
        motions=motions,
        robot=None if robot is None or robot == request.config.env.robot else robot.file,
        resume=found.resume,
        iteration=found.iteration,
        restarted=previous is not None,
        session=session,
        record=_record(request, found, started),
        code=code,
    )
    return run, lines


def _reopen(previous: TrainingRun) -> FoundRun:
    """Find the run that this job trained before it was started again."""
    run_dir = previous.run_dir
    made = () if run_dir.exists() else (run_dir,)
    run_dir.mkdir(parents=True, exist_ok=True)  # rank 0 may be on another host now; --checkpoint-url helps then
    checkpoint, _ = find_valid_checkpoint(run_dir)
    return FoundRun(run_dir=run_dir, checkpoint=checkpoint, resume=previous.resume, made=made)


def _describe_resumption(
    request: TrainRequest,
    found: FoundRun,
    previous: TrainingRun | None,
    robot: RobotConfig | None,
    code: dict[str, str],
    motions: dict[str, str],
) -> list[str]:
    if previous is not None:
        return [f"started again: resuming from iteration {found.iteration}"]
    if found.checkpoint is None:
        return []
    changes = [
        *list_robot_changes(found.run_dir, robot),
        *list_changes(found.run_dir, **request.params),
        *list_data_changes(found.run_dir, request.config.env, {file: name for name, file in motions.items()}),
        *list_code_changes(found.run_dir, code),
    ]
    return [f"resuming from {shorten(found.checkpoint)}", *(f"changed since: {change}" for change in changes)]


def _record(request: TrainRequest, found: FoundRun, started: str) -> dict[str, Any]:
    run = {**to_plain(request.config.run), "resume": found.resume}
    file = task_file(request.config.task)
    return {
        "task": request.config.task,
        "task_file": None if file is None else str(file.absolute()),
        "begun": _find_begin(found.run_dir, started),
        "started": started,
        "run": run,
        **find_kept_flags(found, run),
        "launch": to_plain(request.launch),
        "plan": to_plain(request.plan.for_run(found.run_dir)),
        "packages": installed_packages(),
        "git": read_git_state(Path.cwd()),
        "host": socket.gethostname(),
    }


def _find_begin(run_dir: Path, started: str) -> str:
    """Return when a run was first started, here or where it was fetched from, which tells it from other runs."""
    times = read_starts(list_records(run_dir), "begun", "started")
    return datetime.fromtimestamp(min(times)).astimezone().isoformat(timespec="milliseconds") if times else started


def report_restart(
    run: TrainingRun, max_restarts: int, failure: "Failure | None", restart: int, back_off_s: float, change: "Change"
) -> None:
    """Print one line, and write one into metrics.jsonl, before a job is restarted: from which iteration, and why.

    Another line says what the job is left without. A restart without a failure is said to be planned.

    Raises:
        RunTakenError: Another process trains in the run directory now.
        RequestError: A run that has failed is missing, and no storage has its checkpoints; it would begin again.
    """
    run_dir = run.run_dir
    check_claim(run_dir, run.session)
    stored = run.record.get("run", {}).get("checkpoint_url") is not None or is_url(run.resume)
    if failure is not None and not stored and not run_dir.exists():
        raise RequestError(f"{run_dir} is missing (deleted or renamed)")
    iteration = saved_iteration(run_dir)
    more: dict[str, Any] = {"world_size": change.num_ranks, "left_out": list(change.left_out)}
    more |= {"taken_in": list(change.taken_in)}
    news = [f"{change.num_ranks} of {change.num_places} ranks continue, {change.news}"] if change.news else []
    if failure is None:
        _write_restart(run_dir, iteration, change.planned_cause, planned=True, **more)
        tell(f"planned restart from iteration {iteration}, as {change.planned_cause}; it is not counted", *news)
        return
    cause = f"{failure.place()}: {failure.summary}"
    _write_restart(run_dir, iteration, cause, restart=restart, wait_s=back_off_s, **(more if change.news else {}))
    tell(f"restart {restart} of {max_restarts} in {back_off_s:g} s, from iteration {iteration}, after {cause}", *news)


def _write_restart(run_dir: Path, iteration: int, cause: str, **fields: Any) -> None:
    with suppress(Exception):  # the directory is gone, say, or the disk full: the restart matters more than its record
        lost = max(0, read_last_row(run_dir).get("iteration", 0) - iteration)
        write_event(run_dir, "restart", **fields, iteration=iteration, lost=lost, cause=cause, time=time.time())


@contextmanager
def naming_last_checkpoint(run_dir: Path) -> Iterator[None]:
    """Add to the error of a stop that has not saved which checkpoint is the last one."""
    try:
        yield
    except NotSavedError as error:
        try:
            last = next(iter(list_checkpoints(run_dir)), None)
            error.add("no checkpoint found" if last is None else f"the last checkpoint is {last}")
        except OSError as problem:
            error.add(f"{run_dir} cannot be reached ({problem.strerror})")
        raise error


def saved_iteration(run_dir: Path) -> int:
    """Return the iteration of a run's newest valid checkpoint; 0 if it has none, or cannot be reached now."""
    try:
        checkpoint, _ = find_valid_checkpoint(run_dir)
    except OSError:
        return 0
    return 0 if checkpoint is None else checkpoint_iteration(checkpoint)


def tell(*lines: str) -> None:
    """Print lines to standard error, with what would control a terminal escaped."""
    for line in lines:
        write_to_stderr(printable(line))
