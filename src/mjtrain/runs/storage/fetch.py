"""Download the newest valid checkpoint from object storage."""

import contextlib
import os
from pathlib import Path

from mjtrain.runs.checkpoint import checkpoint_iteration, checkpoint_path, has_valid_checksum, write_best
from mjtrain.runs.storage.publish import (
    LATEST,
    Latest,
    newest_first,
    object_iteration,
    object_name,
    read_latest,
    read_stored_best,
)
from mjtrain.runs.storage.store import Storage, local_folder
from mjtrain.runtime.event_log import METRICS_FILE
from mjtrain.runtime.files import replacing, write_whole
from mjtrain.runtime.machine import is_writable


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


def fetch_checkpoint(url: str, run_dir: Path) -> tuple[Path | None, list[str]]:
    """Download the newest valid checkpoint below a URL, the best one, and the params, robot and metrics of its run.

    Args:
        url: As `check_url` returns it.
        run_dir: An existing folder, for `model_{iteration}.pt`, `params/`, `robot/` and `metrics.jsonl`; params,
            robots and metrics that are there already stay.

    Returns:
        The file, None if there is no valid checkpoint; and a line for each problem found.
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
            _fetch_params(storage, list(objects), run_dir)
            problems += _fetch_robot(storage, objects, run_dir)
            _fetch_metrics(storage, objects, run_dir)
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
                raise _OtherContentError(f"its SHA-256 is {sha256[:16]}…, which is not the one in its name")
            if not has_valid_checksum(file):
                raise _OtherContentError("it is not a complete checkpoint")
    except FileNotFoundError:
        return "it was deleted during the download"
    except _OtherContentError as error:
        return str(error)
    return None


class _OtherContentError(Exception):
    """An object is not what its name says."""


def _fetch_best(storage: Storage, names: list[str], objects: dict[str, int], run_dir: Path) -> list[str]:
    """Download the best checkpoint, if one is recorded there; return a line if it cannot be had."""
    best = read_stored_best(storage)
    if best is None:
        return []
    path = checkpoint_path(run_dir, best.iteration)
    candidates = [name for name in names if object_iteration(name) == best.iteration]
    if not path.exists() and (not candidates or _download(storage, candidates[0], objects[candidates[0]], path)):
        return [f"the best checkpoint, {path.name}, is not stored at {storage.url}"]
    write_best(run_dir, best)
    return []


def _fetch_params(storage: Storage, names: list[str], run_dir: Path) -> None:
    """Download the params. They are useful but not needed, so a failed write is not an error."""
    for name in names:
        path = run_dir / name
        if os.path.normpath(name) == name and Path(name).parent == Path("params") and not path.exists():
            content = storage.read(name)
            if content is not None:
                with contextlib.suppress(OSError):
                    path.parent.mkdir(exist_ok=True)
                    write_whole(path, content[0])


def _fetch_robot(storage: Storage, objects: dict[str, int], run_dir: Path) -> list[str]:
    """Download the robot, which is needed where its file is not on this machine; a line for what cannot be written."""
    problems = []
    for name, size in objects.items():
        path = run_dir / name
        if os.path.normpath(name) == name and Path(name).parts[0] == "robot" and not path.exists():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as file:
                    storage.download(name, size, file)
            except FileNotFoundError:
                pass  # another writer deleted it
            except OSError as error:
                problems.append(f"{path}: cannot be written ({error.strerror})")
    return problems


def _fetch_metrics(storage: Storage, objects: dict[str, int], run_dir: Path) -> None:
    """Download the metrics up to the checkpoint, without which curves would begin in the middle."""
    path = run_dir / METRICS_FILE
    if METRICS_FILE in objects and not path.exists():
        with contextlib.suppress(OSError), replacing(path) as file:  # useful but not needed
            storage.download(METRICS_FILE, objects[METRICS_FILE], file)
