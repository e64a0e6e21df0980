"""Where a run lives, how its records are read, and how a refused request leaves nothing behind."""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from mjtrain.config import TrainConfig
from mjtrain.config.functions import with_default_params
from mjtrain.env.catalog import folder_name
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import partial_path, write_whole

_COMPARED_BY_CONTENT = {"env.robot.file", "env.robot.spec"}
"""What `list_changes` leaves to others, by name; see runs/robot.py."""

PROBE_GRACE_S = 0.3
"""How long a lock that something else holds is tried again, in seconds."""


def name_run_dir(config: TrainConfig) -> Path:
    """Name the run directory of this second: {log_root}/{experiment}/{date}_{time}[_{run_name}], absolute.

    Raises:
        RequestError: The run name is no file name.
    """
    if "/" in config.run.run_name:
        raise RequestError(f"--run-name {config.run.run_name}: must not contain a slash; --log-root chooses the folder")
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    return experiment_dir(config) / "_".join(filter(None, (stamp, config.run.run_name)))


def make_run_dir(config: TrainConfig) -> Path:
    """Create the run directory under a name that no other run has, and return it.

    Raises:
        RequestError: The log root cannot be written, or the run name is no file name.
    """
    while True:
        run_dir = name_run_dir(config)
        try:
            run_dir.mkdir(parents=True)
        except FileExistsError:
            time.sleep(0.1)  # another run began in this second: names are unique by waiting for the next
            continue
        except OSError as error:
            raise RequestError(f"--log-root {config.run.log_root}: cannot be written ({error.strerror})") from error
        return run_dir


def experiment_dir(config: TrainConfig) -> Path:
    """Name the folder in which a new run is made, absolute.

    Raises:
        RequestError: A name is no file name.
    """
    given, own = config.agent.experiment_name, config.task_name
    if "/" in given or given in (".", ".."):
        raise RequestError(f"--agent.experiment-name {given}: must be a file name; --log-root chooses the folder")
    if own is not None and ("/" in own or own in ("", ".", "..")):
        raise RequestError(f"TaskConfig.name {own!r}: must be a file name, as runs of the task live in {own!r}")
    return (Path(config.run.log_root) / (given or own or folder_name(config.task))).absolute()


@contextmanager
def claim_run_dir(run_dir: Path) -> Iterator[None]:
    """Be the only process that trains in a run directory during a with block.

    Raises:
        RequestError: Another one does.
    """
    descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not _lock(descriptor):
            raise RequestError(f"--resume {run_dir}: another process is training there")
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Lock a directory; a lock that is held for a moment only, as `mjtrain runs` does, is waited for."""
    deadline = time.monotonic() + PROBE_GRACE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        except OSError:
            return True  # a file system without locks: the user is trusted
        else:
            return True


def save_params(run_dir: Path, **params: Any) -> None:
    """Write each keyword argument, plain values, to params/{keyword}.yaml; a file is the old one or the new one.

    Files of an earlier start that differ are kept in params/previous/{time of that start}.

    Raises:
        OSError: They cannot be written.
    """
    folder = run_dir / "params"
    folder.mkdir(exist_ok=True)
    files = {folder / f"{name}.yaml": yaml.safe_dump(content, sort_keys=False) for name, content in params.items()}
    changed = {path: text for path, text in files.items() if not path.exists() or path.read_text() != text}
    if any(path.exists() for path in changed):
        _keep_previous(folder)
    for path, text in changed.items():
        write_whole(path, text)


def _keep_previous(folder: Path) -> None:
    """Copy the params of the last start to previous/{time}, all or none."""
    newest = max(path.stat().st_mtime for path in folder.glob("*.yaml"))
    kept = folder / "previous" / datetime.fromtimestamp(newest).strftime("%Y-%m-%d_%H-%M-%S.%f")
    if kept.exists():
        return  # a start that was interrupted here has kept them
    partial = partial_path(kept)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in folder.glob("*.yaml"):
        shutil.copy2(path, partial)
    partial.rename(kept)


def load_params(run_dir: Path, name: str) -> Any:
    """Read what `save_params` wrote for a run under a name.

    Raises:
        RequestError: It is not there, or is not valid YAML.
    """
    path = run_dir / "params" / f"{name}.yaml"
    try:
        return yaml.safe_load(path.read_text())
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error.strerror}); {run_dir} is not a run directory") from error
    except yaml.YAMLError as error:
        raise RequestError(f"{path}: is not valid YAML ({' '.join(str(error).split())})") from error


def list_changes(run_dir: Path, **params: Any) -> list[str]:
    """Compare with what `save_params` wrote for a run: a line for each value that differs, as `name: old -> new`.

    The files of the robot are compared by content; see `runs.robot.list_robot_changes`.
    """
    changes = []
    for name, content in params.items():
        before = read_params(run_dir, name)
        if before:
            now = yaml.safe_load(yaml.safe_dump(content))
            changes += _compare(name, with_default_params(before), with_default_params(now))
    return changes


def read_params(run_dir: Path, name: str) -> dict[str, Any]:
    """Return what `load_params` reads; empty if it cannot be read."""
    try:
        content = yaml.safe_load((run_dir / "params" / f"{name}.yaml").read_text())
    except (OSError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def _compare(name: str, before: Any, now: Any) -> list[str]:
    if name in _COMPARED_BY_CONTENT:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*before, *now])
        return [line for key in keys for line in _compare(f"{name}.{key}", before.get(key), now.get(key))]
    return [] if before == now else [f"{name}: {before} -> {now}"]


@contextmanager
def leaving_no_trace(
    run_dir: Path, made: tuple[Path, ...], started: str, errors: tuple[type[Exception], ...] = (RequestError,)
) -> Iterator[None]:
    """Remove what a with block has put into a run directory, if the request is refused before training begins.

    Args:
        run_dir: Where the run lives; no other process may write there.
        made: Directories that this command has made, the deepest first; with run_dir first for a new run. Those that
            are empty in the end are removed too.
        started: `started` in params/launch.yaml once a rank has accepted the request.
        errors: What counts as a refusal.
    """
    before = set() if run_dir in made else set(run_dir.rglob("*"))
    try:
        yield
    except errors:
        if read_params(run_dir, "launch").get("started") != started:
            _remove(run_dir, before, made)
        raise


def _remove(run_dir: Path, before: set[Path], made: tuple[Path, ...]) -> None:
    if run_dir in made:
        shutil.rmtree(run_dir, ignore_errors=True)
    else:
        for path in sorted(set(run_dir.rglob("*")) - before, reverse=True):  # what is in a folder before the folder
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    for folder in made:
        with contextlib.suppress(OSError):  # another run is there
            folder.rmdir()
