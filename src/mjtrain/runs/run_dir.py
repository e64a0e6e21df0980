"""Where a run lives, its records as YAML of bounded size, and how a refused request leaves nothing behind."""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from mjtrain.config import AgentConfig, LearnerConfig, TrainConfig, from_plain
from mjtrain.config.limits import find_type_problems
from mjtrain.config.plain import with_default_params
from mjtrain.env.catalog import folder_name
from mjtrain.runtime.errors import OutsideError, RequestError
from mjtrain.runtime.files import filling, find_partials, read_regular, remove_partials, sync_folder, write_whole

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may have been built without libyaml
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

# Anyone may have written a YAML file, which therefore has plain values only, of bounded size, depth and number.
_MAX_BYTES = 8 << 20
MAX_DEPTH = 100
"""Of nested values. libyaml crashes with some ten thousand."""

_MAX_VALUES = 200_000
"""With those that aliases repeat: a few hundred bytes of aliases can stand for more than fits in memory."""

_COMPARED_BY_CONTENT = {"env.robot.file", "env.robot.spec"}
"""What `list_changes` leaves to others, by name; see runs/robot.py."""

_LOGS = "torchrunx"
"""Folder in a run directory for the logs of its ranks, which are the first that a start writes there."""


class _GivenLoader(_LOADER):  # pyright: ignore[reportGeneralTypeIssues]
    """Reads what a user has written: a name is given once."""

    def get_single_node(self) -> yaml.Node | None:
        """Check all names before merges (<<) add those of other mappings."""
        root = super().get_single_node()
        waiting, found = [root], set()
        while waiting:
            node = waiting.pop()
            if not isinstance(node, yaml.CollectionNode) or id(node) in found:
                continue
            found.add(id(node))
            if isinstance(node, yaml.MappingNode):
                waiting += [part for pair in node.value for part in pair]
                names = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
                if twice := next((name for name in names if names.count(name) > 1), None):
                    raise yaml.YAMLError(f"{twice[1]} is given twice{node.start_mark}")
            else:
                waiting += node.value
        return root


class SettingsLoader(_GivenLoader):
    """Reads numbers as YAML 1.2 has them too, such as 1e-4."""


SettingsLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse_yaml(text: str | bytes, loader: Any = _LOADER) -> Any:
    """Parse a text; raises a yaml.YAMLError if it is not valid, or too large."""
    if len(text) > _MAX_BYTES:
        raise yaml.YAMLError(f"it has more than {_MAX_BYTES >> 20} MiB")
    try:
        _check_size(text)
        return yaml.load(text, Loader=loader)
    except (ValueError, OverflowError, TypeError) as error:  # a date such as 2026-13-45, or bytes that are not UTF-8
        raise yaml.YAMLError(str(error)) from error


def read_given_yaml(path: Path, flag: str, loader: type[_GivenLoader] = _GivenLoader) -> Any:
    """Parse a file that a flag of a command names; a pipe will do. `flag` is the flag with its value, for errors."""
    try:
        return parse_yaml(path.read_bytes(), loader)
    except OSError as error:
        raise RequestError(f"{flag}: cannot be read ({error.strerror})") from error
    except yaml.YAMLError as error:
        raise RequestError(f"{flag}: is not valid YAML ({' '.join(str(error).split())})") from error


def to_yaml(content: Any) -> str:
    """Write plain values, mappings in their order."""
    return yaml.dump(content, Dumper=_DUMPER, sort_keys=False)


def _check_size(text: str | bytes) -> None:
    sizes: dict[str, int] = {}
    open_values: list[tuple[str | None, int]] = []
    """Anchor of each list and mapping around the current place, and how many values came before it."""
    count = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_values):
                raise yaml.YAMLError(f"the alias {event.anchor} contains itself")
            count += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_values.append((event.anchor, count))
            count += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_values.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        if len(open_values) > MAX_DEPTH:
            raise yaml.YAMLError(f"values are nested deeper than {MAX_DEPTH}")
        if count > _MAX_VALUES:
            raise yaml.YAMLError(f"it stands for more than {_MAX_VALUES:,} values")


class NotWrittenError(OutsideError):
    """A run directory cannot be written now, as on a full disk."""


@contextmanager
def naming_unwritable(run_dir: Path) -> Iterator[None]:
    """Turn an OSError of the with block about a file in a run directory into a `NotWrittenError`."""
    try:
        yield
    except OSError as error:
        if isinstance(error.filename, str) and not Path(error.filename).is_relative_to(run_dir):
            raise  # as of a file that is copied
        raise NotWrittenError(f"{run_dir}: cannot be written ({error.strerror or error})") from error


def name_run_dir(config: TrainConfig) -> Path:
    """Name the run directory of this second: {log_root}/{experiment}/{date}_{time}[_{run_name}], absolute."""
    given = config.run.run_name
    if "/" in given:
        raise RequestError(f"--run-name {given}: must not contain a slash; --log-root chooses the folder")
    if len(os.fsencode(given)) > 235:  # a file name has at most 255, of which the date and the time take 20
        raise RequestError(f"--run-name {given}: must have at most 235 bytes")
    if not _is_utf8(given):
        raise RequestError(f"--run-name {given}: is not UTF-8, and MuJoCo opens no file of that name; give another")
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    return experiment_dir(config) / "_".join(filter(None, (stamp, given)))


def make_run_dir(config: TrainConfig) -> Path:
    """Create the run directory under a name that no other run has, and return it."""
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
    """Name the folder in which a new run is made, absolute."""
    given, own = config.agent.experiment_name, config.task_name
    if "/" in given or given in (".", "..") or len(os.fsencode(given)) > 255:
        raise RequestError(f"--agent.experiment-name {given}: must be a file name; --log-root chooses the folder")
    if own is not None and (not isinstance(own, str) or "/" in own or own in ("", ".", "..")):
        raise RequestError(f"TaskConfig.name {own!r}: must be a file name, that of the folder of the task's runs")
    folder = (Path(config.run.log_root) / (given or own or folder_name(config.task))).absolute()
    if not _is_utf8(str(folder)):
        raise RequestError(
            f"--log-root {config.run.log_root}: {folder} is not UTF-8, and MuJoCo opens no file there; give another "
            "folder"
        )
    return folder


def _is_utf8(text: str) -> bool:
    """Whether a name is text, and not bytes that this locale cannot read."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def save_params(run_dir: Path, **params: Any) -> None:
    """Write each keyword argument, plain values, to params/{keyword}.yaml; a file is the old one or the new one.

    Files of an earlier start that differ are kept in params/previous/{time of that start}.
    """
    folder = run_dir / "params"
    folder.mkdir(exist_ok=True)
    files = {folder / f"{name}.yaml": to_yaml(content).encode() for name, content in params.items()}
    changed = {path: new for path, new in files.items() if not path.exists() or path.read_bytes() != new}
    if any(path.exists() for path in changed):
        _keep_previous(folder)
    for path, new in changed.items():
        write_whole(path, new)


def _keep_previous(folder: Path) -> None:
    """Copy the params of the last start to previous/{time}, all or none."""
    files = [path for path in folder.glob("*.yaml") if path.is_file()]  # one may be a link to nothing
    newest = max(path.stat().st_mtime for path in files)
    kept = folder / "previous" / datetime.fromtimestamp(newest).strftime("%Y-%m-%d_%H-%M-%S.%f")
    if kept.exists():
        return  # a start that was interrupted here has kept them
    for leftover in find_partials(kept):
        shutil.rmtree(leftover, ignore_errors=True)
    with filling(kept) as partial:
        for path in files:
            shutil.copy2(path, partial)
    sync_folder(kept.parent)


def remove_leftovers(run_dir: Path) -> None:
    """Remove what interrupted writes have left in a run directory; the caller must have claimed it."""
    robot = run_dir / "robot"
    remove_partials([run_dir, run_dir / "params", robot, *(path for path in robot.rglob("*") if path.is_dir())])


def check_readable(name: str, content: Any) -> None:
    """Refuse plain values that `save_params` would write and `load_params` would not read, by their largest part."""
    try:
        parse_yaml(to_yaml(content))
    except yaml.YAMLError as error:
        while isinstance(content, dict) and content:
            key = max(content, key=lambda key: len(to_yaml(content[key])))
            name, content = f"{name}.{key}", content[key]
        raise RequestError(
            f"{name}: is too large for the record of a run ({error}); give the path of a file that has it"
        ) from error


def load_params(run_dir: Path, name: str) -> dict[str, Any]:
    """Read what `save_params` wrote for a run under a name."""
    path = run_dir / "params" / f"{name}.yaml"
    try:
        content = parse_yaml(read_regular(path, _MAX_BYTES + 1))
    except OSError as error:
        raise RequestError(f"{path}: cannot be read ({error.strerror}); {run_dir} is not a run directory") from error
    except yaml.YAMLError as error:
        raise RequestError(f"{path}: is not valid YAML ({' '.join(str(error).split())})") from error
    if content is None:
        raise RequestError(f"{path}: is empty")
    if not isinstance(content, dict):
        raise RequestError(f"{path}: holds a {type(content).__name__}, not settings by their names")
    return content


def list_changes(run_dir: Path, **params: Any) -> list[str]:
    """Compare with what `save_params` wrote for a run: a line for each value that differs, as `name: old -> new`.

    The files of the robot are compared by content; see `runs.robot.list_robot_changes`.
    """
    changes = []
    for name, content in params.items():
        before = read_params(run_dir, name)
        if before:
            now = parse_yaml(to_yaml(content))
            changes += list_differences(name, with_default_params(before), with_default_params(now))
    return changes


def read_params(run_dir: Path, name: str) -> dict[str, Any]:
    """Return what `load_params` reads; empty if it cannot be read."""
    try:
        return load_params(run_dir, name)
    except RequestError:
        return {}


def read_recorded(run_dir: Path, part: str) -> dict[str, Any]:
    """Return a part of params/launch.yaml, such as run: the flags of the run; empty if it cannot be read."""
    found = read_params(run_dir, "launch").get(part)
    return found if isinstance(found, dict) else {}


def list_differences(name: str, before: Any, now: Any) -> list[str]:
    """Compare plain values: a line for each that differs, as `name: old -> new`."""
    if name in _COMPARED_BY_CONTENT:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*before, *now])
        return [line for key in keys for line in list_differences(f"{name}.{key}", before.get(key), now.get(key))]
    return [] if before == now else [f"{name}: {before} -> {now}"]


def read_learner(run_dir: Path) -> LearnerConfig:
    """Read the learner that a run recorded; the default where it names none."""
    path = run_dir / "params" / "learner.yaml"
    content = load_params(run_dir, "learner") if path.exists() else {}  # runs of early versions have no such file
    try:
        return from_plain(LearnerConfig, content)
    except ValueError as error:
        raise RequestError(f"{path}: {error}") from error


def parse_agent(content: dict[str, Any]) -> AgentConfig:
    """Return the agent of params/agent.yaml; raises a ValueError if a field is unknown or of another type."""
    agent = from_plain(AgentConfig, content)
    if problems := find_type_problems(AgentConfig, agent, "agent", limits=False):
        raise ValueError("; ".join(problems))
    return agent


@contextmanager
def removing_on_refusal(
    run_dir: Path, made: tuple[Path, ...], started: str, errors: tuple[type[Exception], ...] = (RequestError,)
) -> Iterator[None]:
    """Remove the logs that a with block has put into a run directory, if the request is refused before training begins.

    Args:
        made: Directories that this command has made, the deepest first; with run_dir first for a new run, which is then
            removed as a whole. Those that are empty in the end are removed too.
        started: `started` in params/launch.yaml once a rank has accepted the request.
    """
    before = set(_list_logs(run_dir))
    try:
        yield
    except errors:
        if read_params(run_dir, "launch").get("started") != started:
            _remove(run_dir, before, made)
        raise


@contextmanager
def removing_empty(made: tuple[Path, ...]) -> Iterator[None]:
    """Remove directories that this command has made, the deepest first, if they are empty after a with block."""
    try:
        yield
    finally:
        _remove_empty(made)


def _remove_empty(made: tuple[Path, ...]) -> None:
    for folder in made:
        with contextlib.suppress(OSError):  # another run is in it
            folder.rmdir()


def _list_logs(run_dir: Path) -> list[Path]:
    """List what a start writes before a rank accepts the request; what others put into the run is not listed."""
    logs = run_dir / _LOGS
    return [logs, *logs.rglob("*")] if logs.exists() else []


def _remove(run_dir: Path, before: set[Path], made: tuple[Path, ...]) -> None:
    if run_dir in made:
        shutil.rmtree(run_dir, ignore_errors=True)
    else:
        for path in sorted(set(_list_logs(run_dir)) - before, reverse=True):  # what is in a folder before the folder
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    _remove_empty(made)
