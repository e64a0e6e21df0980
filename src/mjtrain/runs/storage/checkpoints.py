"""Checkpoints below a URL: how they are named, stored and fetched, and which run the URL belongs to."""

import contextlib
import hashlib
import io
import json
import os
import re
import socket
import time
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO

from mjtrain.runs.checkpoint import (
    BEST_FILE,
    WANDB_ID_FILE,
    BestCheckpoint,
    CheckpointError,
    checkpoint_iteration,
    checkpoint_path,
    has_valid_checksum,
    parse_best,
    read_best,
    write_best,
)
from mjtrain.runs.storage.store import ConflictError, Storage, StorageError, Version, local_folder
from mjtrain.runtime.event_log import METRICS_FILE, parse_line
from mjtrain.runtime.files import read_regular, replacing
from mjtrain.runtime.machine import is_writable

LATEST, OWNER = "latest.json", "run.json"
"""The newest checkpoint below a URL; which run the URL belongs to, which only one of two writers can create."""

_MAX_CONFLICTS = 10


@dataclass(frozen=True, kw_only=True)
class Latest:
    """The newest checkpoint below a URL."""

    iteration: int
    """Iterations that it holds."""

    object: str
    """Its name below the URL."""

    sha256: str
    """SHA-256 of its bytes, in hexadecimal."""

    size: int
    """Its size in bytes."""

    run: str
    """Name of the run directory that it comes from."""

    host: str
    """The host it was published from."""

    time: float
    """When it was published, in seconds since the epoch."""

    def to_json(self) -> bytes:
        """Return the content of latest.json."""
        return json.dumps(asdict(self), indent=2).encode() + b"\n"


def parse_latest(content: bytes) -> Latest | None:
    """Read latest.json; None if it is damaged."""
    try:
        latest = Latest(**json.loads(content))
        return latest if object_iteration(latest.object) == latest.iteration else None
    except (ValueError, TypeError, RecursionError):
        return None


def object_name(iteration: int, sha256: str) -> str:
    """Name the object of a checkpoint after its content, so that no writer ever changes what another one stored."""
    return f"model_{iteration}-{sha256[:16]}.pt"


def object_iteration(name: str) -> int | None:
    """Read the iteration from an object's name; None if it is not the name of a checkpoint."""
    found = re.fullmatch(r"model_(\d+)-[0-9a-f]{16}\.pt", name)
    return None if found is None else int(found[1])


def newest_first(names: list[str], latest: Latest | None) -> list[str]:
    """Order the checkpoints among names; among those of one iteration, the one that latest.json names comes first."""
    found = [(iteration, name) for name in names if (iteration := object_iteration(name)) is not None]
    named = None if latest is None else latest.object
    return [name for _, name in sorted(found, key=lambda item: (item[0], item[1] == named, item[1]), reverse=True)]


def choose_stale(names: list[str], latest: Latest, keep: int, best: int | None = None) -> list[str]:
    """Choose the objects to delete so that the newest `keep` iterations remain, and the best one if it is given.

    Objects newer than the one that latest.json names belong to another writer. The one that it names is never chosen.
    """
    settled = [name for name in newest_first(names, latest) if (object_iteration(name) or 0) <= latest.iteration]
    kept = [*sorted({object_iteration(name) or 0 for name in settled}, reverse=True)[:keep], best]
    return [name for name in settled if object_iteration(name) not in kept and name != latest.object]


class NewerThereError(Exception):
    """The storage holds a newer checkpoint than the one to publish."""


def read_latest(storage: Storage) -> tuple[Latest | None, Version | None]:
    """Return what latest.json says, None where there is none or it is damaged, and its version if it exists."""
    found = storage.read(LATEST)
    return (None, None) if found is None else (parse_latest(found[0]), found[1])


def publish(storage: Storage, path: Path, file: BufferedReader, *, keep: int | None) -> None:
    """Store a checkpoint, and have latest.json name it once it is complete.

    Args:
        path: The checkpoint; the params, the metrics, the robot and W&B's id of its run directory go with it, and
            which checkpoint is the best, if that is stored.
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
    for record in (*sorted((path.parent / "params").glob("*.yaml")), path.parent / WANDB_ID_FILE):
        if record.is_file():
            storage.upload(record.relative_to(path.parent).as_posix(), io.BytesIO(record.read_bytes()))
    _upload_robot(storage, path.parent)
    with contextlib.suppress(FileNotFoundError):
        metrics = (path.parent / METRICS_FILE).read_bytes()
        storage.upload(METRICS_FILE, io.BytesIO(metrics[: metrics.rfind(b"\n") + 1]))  # the last line may be torn
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
        best = _read_stored_best(storage)
        kept = None if best is None else best.iteration
        storage.delete(choose_stale(list(storage.list_objects()), latest, keep, kept))


def _read_stored_best(storage: Storage) -> BestCheckpoint | None:
    """Return which checkpoint is recorded as the best at a URL; None if none is, or the record is damaged."""
    found = storage.read(BEST_FILE)
    return None if found is None else parse_best(found[0])


def publish_best(storage: Storage, path: Path, file: BufferedReader) -> None:
    """Store the best checkpoint of a run where a newer one is stored already, and then make best.json name it."""
    name = object_name(checkpoint_iteration(path), _digest(file)[0])
    if storage.size(name) != file.seek(0, io.SEEK_END):
        storage.upload(name, file)
    _record_best(storage, path.parent)


def _record_best(storage: Storage, run_dir: Path) -> None:
    """Store which checkpoint is the best, once its object is stored."""
    best = read_best(run_dir)
    if best is not None and any(object_iteration(name) == best.iteration for name in storage.list_objects()):
        storage.upload(BEST_FILE, io.BytesIO(best.to_json()))


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


class TakenError(Exception):
    """Another run, or another start of the same one, stores its checkpoints at the URL."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who stores checkpoints at a URL."""

    session: str
    """Session of the claim to its run directory, see `runs.claim`."""

    run: str
    """Name of the run directory."""

    host: str
    """Host of its first rank."""

    time: float
    """When it took the URL, in seconds since the epoch."""

    def __str__(self) -> str:
        return f"run {self.run} on host {self.host}"


def take_url(storage: Storage, session: str, run: str, *, is_new: bool) -> None:
    """Record that a run stores its checkpoints at a URL from now on.

    A new run raises a TakenError if another one has just taken the URL, or has stored checkpoints there. A run that is
    resumed replaces the recorded one.
    """
    own = Owner(session=session, run=run, host=socket.gethostname(), time=time.time())
    for _ in range(_MAX_CONFLICTS):
        theirs, version = read_owner(storage)
        if theirs is not None and theirs.session == session:
            return
        if is_new and any(object_iteration(name) is not None for name in storage.list_objects()):
            raise TakenError(f"{theirs or 'another run'} has stored checkpoints there")
        try:
            storage.replace(OWNER, json.dumps(asdict(own)).encode() + b"\n", version)
        except ConflictError:
            if is_new:
                raise TakenError(f"{read_owner(storage)[0] or 'another run'} began there at the same time") from None
        else:
            return
    raise StorageError(f"{storage.url}/{OWNER} is changed by other writers all the time")


def read_owner(storage: Storage) -> tuple[Owner | None, Version | None]:
    """Return who stores checkpoints at a URL, None if nobody is recorded or the record is damaged, and its version."""
    found = storage.read(OWNER)
    try:
        return (None, None) if found is None else (Owner(**json.loads(found[0])), found[1])
    except (ValueError, TypeError, RecursionError):
        return None, None if found is None else found[1]


def check_owner(storage: Storage, session: str, run: str) -> None:
    """Raise a TakenError unless the URL belongs to this session; one that belongs to nobody is taken."""
    theirs, _ = read_owner(storage)
    if theirs is None:
        take_url(storage, session, run, is_new=False)
    elif theirs.session != session:
        raise TakenError(f"{theirs} has stored there since, so this job does not store there now")


def find_stored_iteration(url: str) -> int:
    """Return the newest iteration that is stored below a URL, 0 if there is none; nothing is verified."""
    folder = local_folder(url)
    if folder is not None and _is_missing(folder) and is_writable(folder):
        return 0  # `Storage` would make it
    storage = Storage(url)
    return max((object_iteration(name) or 0 for name in storage.list_objects()), default=0)


def _is_missing(path: Path) -> bool:
    """Return whether a path does not exist, but could: `os.path.lexists` takes a name that is too long for missing."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        pass  # `Storage` says why
    return False


def fetch_checkpoint(url: str, run_dir: Path, *, is_copied: bool = False) -> tuple[Path | None, list[str]]:
    """Download the newest valid checkpoint below a URL, the best one, and the params, robot and metrics of its run.

    Params and robots that the run directory already has are kept. Of its metrics, events and later iterations are added
    to the stored ones: a restart is recorded before anything is fetched, and newer checkpoints here may be damaged.

    Args:
        is_copied: Whether the run is stored at another URL from now on. Then it begins another run of W&B, because the
            one at this URL may still be written.

    Returns:
        The file, or None if no checkpoint is valid; and a line for each problem found.
    """
    storage = Storage(url)
    latest, version = read_latest(storage)
    objects = storage.list_objects()
    names = newest_first(list(objects), latest)
    problems = _compare(url, latest, names, is_damaged=latest is None and version is not None)
    for name in names:
        iteration = object_iteration(name)
        assert iteration is not None
        path = checkpoint_path(run_dir, iteration)
        problem = _download(storage, name, objects[name], path)
        if problem is None:
            problems += _fetch_files(storage, objects, run_dir, is_copied=is_copied)
            return path, problems + _fetch_best(storage, names, objects, run_dir)
        problems.append(f"passed over {url}/{name}: {problem}")
    return None, problems


def _compare(url: str, latest: Latest | None, names: list[str], *, is_damaged: bool) -> list[str]:
    if is_damaged:
        return [f"{url}/{LATEST} is damaged: using the newest valid checkpoint beside it"]
    if latest is None:
        return [f"{url}/{LATEST} is missing: using the newest valid checkpoint"] if names else []
    if latest.object not in names:
        return [f"{url}/{LATEST} names {latest.object}, which is not stored: using the newest valid checkpoint"]
    if names[0] != latest.object:
        return [f"{url}/{LATEST} names {latest.object}, but {names[0]} is newer"]
    return []


def _download(storage: Storage, name: str, size: int, path: Path) -> str | None:
    """Download a checkpoint; return what is wrong with it, or None. The file appears only if nothing is."""
    try:
        with replacing(path) as file:
            sha256 = storage.download(name, size, file)
            if name != object_name(checkpoint_iteration(path), sha256):
                raise CheckpointError(f"its SHA-256 is {sha256[:16]}…, which is not the one in its name")
            if not has_valid_checksum(file):
                raise CheckpointError("it is not a complete checkpoint")
    except FileNotFoundError:
        return "it was deleted during the download"
    except CheckpointError as error:
        return str(error)
    return None


def _fetch_best(storage: Storage, names: list[str], objects: dict[str, int], run_dir: Path) -> list[str]:
    """Download the best checkpoint, if one is recorded there; return a line if it cannot be had."""
    best = _read_stored_best(storage)
    if best is None:
        return []
    path = checkpoint_path(run_dir, best.iteration)
    candidates = [name for name in names if object_iteration(name) == best.iteration]
    if not path.exists() and (not candidates or _download(storage, candidates[0], objects[candidates[0]], path)):
        return [f"the best checkpoint, {path.name}, is not stored at {storage.url}"]
    write_best(run_dir, best)
    return []


def _fetch_files(storage: Storage, objects: dict[str, int], run_dir: Path, *, is_copied: bool) -> list[str]:
    """Download params, robot, metrics and W&B's id; return a line for each file of the robot that was not written."""
    problems = []
    for name, size in objects.items():
        path, is_robot = run_dir / name, name.startswith("robot/")
        is_id = name == WANDB_ID_FILE and not is_copied
        is_kept = is_robot or is_id or Path(name).parent == Path("params")
        if name == METRICS_FILE or (is_kept and os.path.normpath(name) == name and not path.exists()):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as file:
                    storage.download(name, size, file)
                    if name == METRICS_FILE:
                        _add_missing(file, path)
            except FileNotFoundError:
                pass  # another writer deleted it
            except OSError as error:
                problems += [f"{path}: cannot be written ({error.strerror})"] if is_robot else []
    return problems


def _add_missing(file: IO[bytes], earlier: Path) -> None:
    """Add to metrics what they lack of an earlier file: events, and iterations after their last one."""
    file.seek(0)
    known = set(file)
    last = max((row["iteration"] for row in map(parse_line, known) if row and "event" not in row), default=0)
    for line in read_regular(earlier).splitlines(keepends=True) if earlier.exists() else ():
        row = parse_line(line)
        if row is not None and line not in known and ("event" in row or row["iteration"] > last):
            file.write(line)
