"""From the name of a task to its factory, importing only what is asked for."""

import ast
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

from mjtrain.config import TaskConfig
from mjtrain.config.train import gymnasium_task
from mjtrain.runtime.errors import RequestError, StoppedError, message_of, suggest
from mjtrain.runtime.machine import find_entry_points

GROUP = "mjtrain.tasks"
"""Entry-point group in which a package registers task factories."""

GYMNASIUM = "gymnasium:"
"""Begins a task that is an environment of Gymnasium, followed by its id."""

MJLAB = "mjlab:"
"""Begins a task of mjlab's registry, followed by its id."""

CUSTOM = "custom"
"""What a run records as its task if that was made in Python and has no name."""

TRAINS_IN = "Trains in:"
"""Begins the line of a factory's docstring that says how long training takes."""


@dataclass(frozen=True, kw_only=True)
class TaskSummary:
    """What `list-tasks` says about a task."""

    name: str
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
    return sorted(find_entry_points(GROUP), key=lambda entry: entry.name.lower())


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
    """Return the docstring of a function, or else that of its module; empty if no source can be read."""
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
    """Return the name of a registered task as the catalogue spells it, or a path with its factory.

    Args:
        task: A name, a path to a factory, or a file whose only factory is meant.
    """
    if ":" in task:
        return task
    return f"{task}:{_find_only_factory(task)}" if task.endswith(".py") else _find(task).name


def is_same_task(recorded: str | None, task: str) -> bool:
    """Return whether a recorded task is this one.

    A task in a file is known by the names of the file and of the factory, because the file may have been moved or
    copied since. But if the recorded path is absolute and leads to a file that is another one, with other content, that
    is another task.
    """
    if recorded is None or _identify(recorded) != _identify(task):
        return False
    before, now = task_file(recorded), task_file(task)
    if before is None or now is None or not before.is_absolute():
        return True
    try:
        if not before.is_file() or not now.is_file():
            return True
        return before.samefile(now) or before.read_bytes() == now.read_bytes()
    except OSError:  # a file in another user's home counts as moved
        return True


def task_file(task: str) -> Path | None:
    """Return the file in which a task is, as the task spells it; None if the task is not given by a file."""
    place = task.rpartition(":")[0]
    return Path(place) if place.endswith(".py") else None


def shared_name(task: str) -> str:
    """Name a task in files that are passed on: one in a file by the file's name, without its folder on this machine."""
    file = task_file(task)
    if file is None:
        return task
    name = file.name if file.stem != "__init__" else f"{file.absolute().parent.name}/{file.name}"  # of a package
    return f"{name}:{task.rpartition(':')[2]}"


def folder_name(task: str) -> str:
    """Name the folder that holds a task's runs.

    That is the task's name in lower case, and for a task given by a path the name of its file or module and that of
    its factory: hopper_make_task for path/to/hopper.py:make_task.
    """
    place, name = _identify(task)
    return f"{re.sub('[-.]', '_', place).lower()}_{name}" if place else name


def _identify(task: str) -> tuple[str, str]:
    """Return the file, module or package of a task, empty for a registered one, and its own name or its factory's."""
    place, _, name = task.rpartition(":")
    if task.startswith(GYMNASIUM):  # ids may have a namespace, a module and a version
        return GYMNASIUM[:-1], re.sub(r"[^\w.]", "_", task.removeprefix(GYMNASIUM)).lower()
    if task.startswith(MJLAB):
        return MJLAB[:-1], re.sub(r"\W", "_", task.removeprefix(MJLAB)).lower()
    file = task_file(task)
    if file is not None:
        place = file.absolute().parent.name if file.name == "__init__.py" else file.stem
    return place, name.lower().replace("-", "_")


def load_task(task: str) -> TaskConfig:
    """Call the factory of a task.

    Args:
        task: A name from `list_tasks` in any case, "package.module:factory", "path/to/file.py:factory",
            "path/to/file.py" for the only factory in that file, "gymnasium:ID" for an environment of Gymnasium, or
            "mjlab:ID" for a task of mjlab.

    Raises:
        RequestError: The task does not exist, or its factory cannot be imported, fails, or returns no TaskConfig.
    """
    if task.startswith(GYMNASIUM):
        return gymnasium_task(task.removeprefix(GYMNASIUM))
    if task.startswith(MJLAB):
        from mjtrain.env.external.mjlab_task import load_mjlab_task  # imports mjlab

        return load_mjlab_task(task.removeprefix(MJLAB))
    try:
        factory = _load_factory(task)
        config = factory()
    except (RequestError, StoppedError):
        raise
    except (Exception, SystemExit) as error:
        raise RequestError(f"task {task}: {type(error).__name__}: {message_of(error)}{_place(error)}") from error
    if not isinstance(config, TaskConfig):
        raise RequestError(f"task {task}: the factory returned {type(config).__name__}; return a mjtrain.TaskConfig")
    return config


def _place(error: BaseException) -> str:
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
    otherwise = "see list-tasks"
    if (Path(task) / "params").is_dir():
        otherwise = "the folder is a run directory, not a task; see list-tasks"
    elif Path(task).is_dir():
        otherwise = "the folder is neither a task nor a run directory (no params/ in it); see list-tasks"
    elif os.sep in task and not Path(task).exists():
        otherwise = "the file or folder does not exist"
    raise RequestError(f"unknown task {task}{suggest(task, [entry.name for entry in by_name.values()], otherwise)}")


def _load_factory(task: str) -> Callable[[], Any]:
    task = resolve_task_name(task)
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
        raise RequestError(f"task {task}: {module_name} has no function {attribute}{suggest(attribute, there, '')}")
    return factory


def _find_only_factory(file: str) -> str:
    """Name the only factory in a file, by its annotation or else by a name make…; the file is parsed, not imported."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except OSError as error:
        why = f"no such file {file}" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise RequestError(f"task {file}: {why}") from error
    except (SyntaxError, ValueError) as error:
        raise RequestError(f"task {file}: {type(error).__name__}: {error}") from error
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and _is_public(node)]
    typed = {node.name: ast.unparse(node.returns).strip("'\"") for node in functions if node.returns is not None}
    found = [name for name, annotation in typed.items() if annotation.rpartition(".")[2] == "TaskConfig"]
    if not found:
        found = [node.name for node in functions if node.returns is None and node.name.startswith("make")]
    names = list(dict.fromkeys(found))
    if len(names) == 1:
        return names[0]
    if names:
        raise RequestError(f"task {file}: has the factories {', '.join(names)}; choose one, as in {file}:{names[0]}")
    raise RequestError(
        f"task {file}: has no factory; one is a function without arguments that is annotated -> TaskConfig, or not "
        "annotated and named make_…"
    )


def _is_public(node: ast.FunctionDef) -> bool:
    """Tell whether a function is public and can be called without arguments."""
    args = node.args
    required = len(args.posonlyargs) + len(args.args) - len(args.defaults) + args.kw_defaults.count(None)
    return not node.name.startswith("_") and required == 0


def file_module(file: Path) -> str:
    """Name the module that the file of a task becomes."""
    return f"mjtrain_task_{file.stem}"


def _import_file(task: str, path: Path) -> ModuleType:
    import cloudpickle

    if not path.is_file():
        raise RequestError(f"task {task}: no such file {path}")
    path = path.resolve()
    name = file_module(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    cloudpickle.register_pickle_by_value(module)  # no other rank can import it by this name
    spec.loader.exec_module(module)
    return module
