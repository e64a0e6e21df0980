"""From the name of a task to its factory, importing only what is asked for."""

import ast
import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from mjtrain.config import TaskConfig
from mjtrain.errors import RequestError

GROUP = "mjtrain.tasks"
"""Entry-point group in which a package registers task factories."""


TRAINS_IN = "Trains in:"
"""Begins the line of a factory's docstring that says how long training takes."""


@dataclass(frozen=True, kw_only=True)
class TaskSummary:
    """What `list-tasks` says about a task."""

    name: str
    """Name as registered."""

    summary: str
    """First line of the docstring of the factory, or of its module; empty if neither has one."""

    trains_in: str
    """How long training takes; empty if the factory does not say."""

    factory: str
    """Factory as "package.module:function"."""

    distribution: str
    """Name and version of the package that registers it; empty if unknown."""


def list_tasks() -> list[EntryPoint]:
    """Return the registered tasks, sorted by name; nothing is imported."""
    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name.lower())


def summarise_task(entry: EntryPoint) -> TaskSummary:
    """Describe a registered task by the docstring of its factory; the module is parsed and not imported."""
    lines = _read_docstring(entry.module, entry.attr).splitlines()
    trains_in = [line.strip().removeprefix(TRAINS_IN) for line in lines if line.strip().startswith(TRAINS_IN)]
    return TaskSummary(
        name=entry.name,
        summary=lines[0].strip().rstrip(".") if lines else "",
        trains_in=trains_in[0].strip().rstrip(".") if trains_in else "",
        factory=entry.value,
        distribution="" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}",
    )


def _read_docstring(module: str, attribute: str) -> str:
    """Return the docstring of a function, or else that of its module; empty if there is no source to read."""
    top, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(top)  # finds the package without importing it
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    if parts:
        folders = [Path(folder).joinpath(*parts) for folder in spec.submodule_search_locations or ()]
        files = [file for folder in folders for file in (folder / "__init__.py", folder.with_suffix(".py"))]
    else:
        files = [Path(spec.origin or "")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return ""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return ""
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == attribute]
    return (ast.get_docstring(found[-1]) if found else None) or ast.get_docstring(tree) or ""


def resolve_task_name(task: str) -> str:
    """Return the name of a registered task as the catalogue spells it; paths to factories stay as they are.

    Raises:
        RequestError: No task has this name; the message suggests similar ones.
    """
    return task if ":" in task else _find(task).name


def is_same_task(recorded: str | None, task: str) -> bool:
    """Return whether a recorded task is this one; for factories given by a path, their names count and not the path.

    So a task in a file may be elsewhere than it was when a run was trained.
    """
    return recorded is not None and _short_name(recorded) == _short_name(task)


def _short_name(task: str) -> str:
    return task.rpartition(":")[2].lower().replace("-", "_")


def load_task(task: str) -> TaskConfig:
    """Call the factory of a task.

    Args:
        task: A name from `list_tasks` in any case, "package.module:factory" or "path/to/file.py:factory".

    Raises:
        RequestError: There is no such task, or its factory cannot be imported, fails, or returns no TaskConfig.
    """
    try:
        factory = _load_factory(task)
        config = factory()
    except RequestError:
        raise
    except Exception as error:
        raise RequestError(f"task {task}: {type(error).__name__}: {error}{_place(error)}") from error
    if not isinstance(config, TaskConfig):
        raise RequestError(
            f"task {task}: the factory returned {type(config).__name__}; it must return mjtrain.TaskConfig"
        )
    return config


def _place(error: Exception) -> str:
    """Return the file and line of an exception, if it was raised by code of a task."""
    if isinstance(error, SyntaxError):  # its message says
        return ""
    frames = [(Path(frame.f_code.co_filename), line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(file, line) for file, line in frames if file.is_file() and Path(__file__).parent not in file.parents]
    return f" ({own[-1][0].name}, line {own[-1][1]})" if own else ""


def _find(task: str) -> EntryPoint:
    by_name = {entry.name.lower(): entry for entry in list_tasks()}
    if task.lower() in by_name:
        return by_name[task.lower()]
    close = difflib.get_close_matches(task.lower(), by_name, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(by_name[name].name for name in close)}?" if close else "see list-tasks"
    raise RequestError(f"unknown task {task}; {hint}")


def _load_factory(task: str) -> Callable[[], Any]:
    if ":" not in task:
        return _find(task).load()
    module_name, _, attribute = task.rpartition(":")
    if not module_name or not attribute:
        raise RequestError(f"task {task}: expected package.module:factory or path/to/file.py:factory")
    module = _import_file(task, Path(module_name)) if module_name.endswith(".py") else None
    if module is None:
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise RequestError(f"task {task}: {error}") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        there = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        close = difflib.get_close_matches(attribute, there, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise RequestError(f"task {task}: {module_name} has no function {attribute}{hint}")
    return factory


def _import_file(task: str, path: Path) -> ModuleType:
    import cloudpickle

    if not path.is_file():
        raise RequestError(f"task {task}: no such file {path}")
    path = path.resolve()
    name = f"mjtrain_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    cloudpickle.register_pickle_by_value(module)  # no other rank can import it by this name
    spec.loader.exec_module(module)
    return module
