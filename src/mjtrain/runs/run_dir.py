"""Where a run lives."""

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

from mjtrain.checkpoint import find_valid_checkpoint
from mjtrain.config import TrainConfig
from mjtrain.config.functions import with_default_params
from mjtrain.errors import RequestError
from mjtrain.runs.upgrade import upgrade_params

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


def find_run(config: TrainConfig) -> tuple[Path, Path, list[str]]:
    """Find the run on this machine that --resume asks for.

    Returns:
        Its directory, its newest valid checkpoint, and a line for each run and checkpoint that was passed over.

    Raises:
        RequestError: There is none.
    """
    asked = config.run.resume
    if isinstance(asked, str):
        return open_run("--resume", asked, experiment_dir(config))
    return find_newest_run("--resume", config.task, experiment_dir(config))


def open_run(flag: str, name: str, folder: Path) -> tuple[Path, Path, list[str]]:
    """Open a run that a flag names by its path, or by its name below the task's folder; returns as `find_run` does.

    Raises:
        RequestError: It is not there, or has no valid checkpoint.
    """
    run_dir = next((place for place in (Path(name), folder / name) if place.is_dir()), None)
    if run_dir is None:
        raise RequestError(f"{flag} {name}: no such run directory")
    checkpoint, problems = find_valid_checkpoint(run_dir)
    if checkpoint is None:
        raise RequestError(f"{flag} {name}: {'; '.join(problems) or 'there is no checkpoint in it'}")
    return run_dir.absolute(), checkpoint.absolute(), problems


def find_newest_run(flag: str, task: str, folder: Path) -> tuple[Path, Path, list[str]]:
    """Find the newest run in a task's folder that has a valid checkpoint; returns as `find_run` does.

    Args:
        flag: What asks, for messages.
        task: Whose runs they are, for messages.
        folder: See `experiment_dir`.

    Raises:
        RequestError: There is none.
    """
    passed_over = []
    for run_dir in sorted(filter(Path.is_dir, folder.glob("*")), reverse=True):
        checkpoint, problems = find_valid_checkpoint(run_dir)
        if checkpoint is not None:
            return run_dir, checkpoint, [*passed_over, *problems]
        passed_over.append(f"passed over {run_dir}: {'; '.join(problems) or 'there is no checkpoint in it'}")
    reasons = "".join(f"; {line}" for line in passed_over)
    raise RequestError(f"{flag}: no run of {task} below {folder} has a valid checkpoint{reasons}")


def experiment_dir(config: TrainConfig) -> Path:
    """Name the folder that holds a task's runs, absolute."""
    return (Path(config.run.log_root) / (config.agent.experiment_name or experiment_name(config.task))).absolute()


def experiment_name(task: str) -> str:
    """Name the folder that holds a task's runs: the task's name, or the factory's for a task given by its path."""
    name = task.rpartition(":")[2] if ":" in task else task
    return name.lower().replace("-", "_")


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
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(text)
        partial.replace(path)


def _keep_previous(folder: Path) -> None:
    """Copy the params of the last start to previous/{time}, all or none."""
    newest = max(path.stat().st_mtime for path in folder.glob("*.yaml"))
    kept = folder / "previous" / datetime.fromtimestamp(newest).strftime("%Y-%m-%d_%H-%M-%S.%f")
    if kept.exists():
        return  # a start that was interrupted here has kept them
    partial = kept.with_name(f".{kept.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in folder.glob("*.yaml"):
        shutil.copy2(path, partial)
    partial.rename(kept)


def load_params(run_dir: Path, name: str) -> Any:
    """Read what `save_params` wrote for a run under a name; functions have the names of today.

    Raises:
        RequestError: It is not there, or is no YAML.
    """
    path = run_dir / "params" / f"{name}.yaml"
    try:
        return upgrade_params(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error.strerror}); {run_dir} is no run directory") from error
    except yaml.YAMLError as error:
        raise RequestError(f"{path}: is no YAML ({' '.join(str(error).split())})") from error


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
    return upgrade_params(content) if isinstance(content, dict) else {}


def _compare(name: str, before: Any, now: Any) -> list[str]:
    if name in _COMPARED_BY_CONTENT:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*before, *now])
        return [line for key in keys for line in _compare(f"{name}.{key}", before.get(key), now.get(key))]
    return [] if before == now else [f"{name}: {before} -> {now}"]
