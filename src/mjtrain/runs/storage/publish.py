"""Store one checkpoint and make it the latest."""

import contextlib
import hashlib
import io
import socket
import time
from io import BufferedReader
from pathlib import Path

from mjtrain.runs.checkpoint import BEST_FILE, checkpoint_iteration, parse_best, read_best
from mjtrain.runs.storage.record import (
    LATEST,
    Latest,
    choose_stale,
    object_iteration,
    object_name,
    parse_latest,
)
from mjtrain.runs.storage.store import ConflictError, Storage, StorageError, Version
from mjtrain.runtime.event_log import METRICS_FILE

_MAX_CONFLICTS = 10


class NewerThereError(Exception):
    """The storage holds a newer checkpoint than the one to publish."""


def read_latest(storage: Storage) -> tuple[Latest | None, Version | None]:
    """Return what latest.json says, None where there is none or it is damaged, and its version if it exists."""
    found = storage.read(LATEST)
    return (None, None) if found is None else (parse_latest(found[0]), found[1])


def publish(storage: Storage, path: Path, file: BufferedReader, *, keep: int | None) -> None:
    """Store a checkpoint, and have latest.json name it once it is complete.

    Args:
        path: The checkpoint; the params, the metrics and the robot of its run directory go with it, and which
            checkpoint is the best, if that is stored.
        keep: How many iterations stay in the storage, the newest and the best; None keeps all.

    Raises:
        StorageError: The storage cannot be reached or refuses; nothing that was valid before is lost.
        NewerThereError: latest.json names a later iteration, which it keeps; the checkpoint is stored beside it.
    """
    sha256, size = _digest(file)
    iteration = checkpoint_iteration(path)
    name = object_name(iteration, sha256)
    theirs, version = read_latest(storage)
    if theirs is not None and (theirs.object, theirs.sha256) == (name, sha256):
        return
    storage.upload(name, file)  # even if it does not become the latest: the newer one may turn out to be damaged
    _refuse_newer(storage, theirs, iteration)
    for params in sorted((path.parent / "params").glob("*.yaml")):
        storage.upload(f"params/{params.name}", io.BytesIO(params.read_bytes()))
    _upload_robot(storage, path.parent)
    _upload_metrics(storage, path.parent)
    _record_best(storage, path.parent)
    latest = Latest(
        iteration=iteration,
        object=name,
        sha256=sha256,
        size=size,
        run=path.parent.name,
        host=socket.gethostname(),
        time=time.time(),
    )
    for _ in range(_MAX_CONFLICTS):
        try:
            storage.replace(LATEST, latest.to_json(), version)
        except ConflictError:
            theirs, version = read_latest(storage)
            _refuse_newer(storage, theirs, iteration)
        else:
            break
    else:
        raise StorageError(f"{storage.url}/{LATEST} is changed by other writers all the time")
    if keep is not None:
        stored = storage.read(BEST_FILE)
        best = None if stored is None else parse_best(stored[0])
        storage.delete(
            choose_stale(list(storage.list_objects()), latest, keep, None if best is None else best.iteration)
        )


def publish_best(storage: Storage, path: Path, file: BufferedReader) -> None:
    """Store the best checkpoint of a run where a newer one is stored already, and then have best.json name it.

    Raises:
        StorageError: The storage cannot be reached or refuses; what best.json named before is still stored.
    """
    name = object_name(checkpoint_iteration(path), _digest(file)[0])
    if storage.size(name) != file.seek(0, io.SEEK_END):
        storage.upload(name, file)
    _record_best(storage, path.parent)


def _record_best(storage: Storage, run_dir: Path) -> None:
    """Store which checkpoint is the best, once its object is stored."""
    best = read_best(run_dir)
    if best is not None and any(object_iteration(name) == best.iteration for name in storage.list_objects()):
        storage.upload(BEST_FILE, io.BytesIO(best.to_json()))


def _upload_metrics(storage: Storage, run_dir: Path) -> None:
    """Store the metrics so far, without a line that is being written."""
    with contextlib.suppress(FileNotFoundError):
        metrics = (run_dir / METRICS_FILE).read_bytes()
        storage.upload(METRICS_FILE, io.BytesIO(metrics[: metrics.rfind(b"\n") + 1]))


def _upload_robot(storage: Storage, run_dir: Path) -> None:
    """Store the run's copy of its robot; what the storage has stays, as those files never change."""
    files = [path for path in sorted((run_dir / "robot").rglob("*")) if path.is_file() and path.suffix != ".partial"]
    there = storage.list_objects() if files else {}
    for file in files:
        name = file.relative_to(run_dir).as_posix()
        if there.get(name) != file.stat().st_size:
            with file.open("rb") as content:
                storage.upload(name, content)


def _refuse_newer(storage: Storage, theirs: Latest | None, iteration: int) -> None:
    if theirs is not None and theirs.iteration > iteration and storage.size(theirs.object) == theirs.size:
        raise NewerThereError(
            f"{storage.url} holds iteration {theirs.iteration} of run {theirs.run} on host {theirs.host}, a newer one"
        )


def _digest(file: BufferedReader) -> tuple[str, int]:
    """Return SHA-256 in hexadecimal and size in bytes."""
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    return digest, file.tell()
