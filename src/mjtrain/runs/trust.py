"""Whose code may run when a run is opened.

A run directory is data: its records only name code, and anyone may have written them. Code is known if mjtrain provides
it, or a distribution that registers tasks or learners of mjtrain, or if the user has named it: as the task of this
command, or for a training on this machine. The names of the latter are in a file of the user, one per line. Everything
else needs --trust-run.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjtrain.config import AgentConfig, AnyEnvConfig, GymnasiumConfig, TaskConfig, to_plain
from mjtrain.config.plain import collect_functions, import_function
from mjtrain.env.catalog import GROUP, GYMNASIUM, MJLAB, file_module, task_file
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.machine import find_entry_points

_GROUPS = (GROUP, "mjtrain.learners")

_OWN = re.compile(r"mjtrain\.(mdp|learning)(\.|$)|rsl_rl(\.|$)")
"""Modules with what mjtrain's own configs name. Elsewhere it has functions that write files or run programs."""

_WITHOUT_NAME = re.compile(r"__main__:|<locals>|<lambda>")
"""In names of functions that no other process can import by them."""

_TASK_FILE = re.compile(r"mjtrain_task_\w+:")
"""In names of functions of a task's file, which comes with the task."""

_named: set[str] = set()
"""What trainings of this process have used, for a user whose home cannot be written."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """What may be imported for a run."""

    run_dir: Path
    task: str
    """The task as which it is opened, with its file or module if it has one."""

    is_named: bool
    """Whether the user has named the task, and not the run alone."""

    everything: bool
    """Whether the user trusts the run (--trust-run)."""

    def find_objection(self) -> str | None:
        """Return why the code of the task must not run; None if it may."""
        if self.is_named or self.everything:
            return None
        file = _file_of(self.task)
        if file is not None and not file.is_absolute():
            return f"its record names the task {self.task}, a path that is not absolute"
        if file is not None and file.resolve().is_relative_to(self.run_dir.resolve()):
            return f"its record names the task {self.task}, a file of the run itself"
        if not _is_code(self.task) or self.task in _read_named():
            return None
        module = self.task.removeprefix(GYMNASIUM).rpartition(":")[0]
        if file is None and _is_provided(module):
            return None
        return f"its record names the task {self.task}, from which you have not trained on this machine"

    def load(self, spec: str, name: str) -> Any:
        """Import what a record names, if that is allowed; raises a ValueError if it cannot be imported."""
        spec = str(spec)
        if not self.everything and _WITHOUT_NAME.search(spec):  # to trust the run would not help
            raise ValueError(f"{name} is {spec}, which cannot be imported by its name")
        if not self.everything and self._is_known(spec.partition(":")[0]):
            found = import_function(spec, name)
            if self._is_known(getattr(found, "__module__", None) or ""):  # not what such a module has imported
                return found
        if self.everything or spec in _read_named():
            return import_function(spec, name)
        raise self.refuse(f"{name} {spec}")

    def check_agent(self, plain: Any, defaults: TaskConfig | None) -> None:
        """Look whether the classes that a recorded agent names are known."""
        if self.everything:
            return
        known = {*_read_named(), *(spec for _, spec in _find_classes(to_plain(defaults.agent) if defaults else None))}
        for path, spec in _find_classes(plain):
            if spec not in known and not self._is_known(_module_of_class(spec)):
                raise self.refuse(f"agent{path} {spec}")

    def check_env(self, env: AnyEnvConfig) -> None:
        """Look whether the module is known that registers an environment of Gymnasium."""
        if not isinstance(env, GymnasiumConfig) or self.everything or not _is_code(env.label):
            return
        is_task = env.label == self.task and self.find_objection() is None
        if not is_task and env.label not in _read_named() and not _is_provided(env.id.partition(":")[0]):
            raise self.refuse(f"the environment {env.id}")

    def refuse(self, what: str) -> RequestError:
        """Say what would run, and how the user can have it run."""
        objection = self.find_objection()
        because = f" ({objection})" if objection else ""
        by_name = "" if _file_of(self.task) is None or self.is_named else ", or give the task's file and --run RUN"
        return RequestError(
            f"{self.run_dir}: would run code that its record names: {what}{because}; --trust-run (trust=True in "
            f"Python) runs it{by_name}"
        )

    def _is_known(self, module: str) -> bool:
        if _is_provided(module):
            return True
        file, top = _file_of(self.task), module.partition(".")[0]
        own = self.task.partition(":")[0].partition(".")[0] if file is None else file_module(file)
        return _is_code(self.task) and top == own and top != "mjtrain" and self.find_objection() is None


def remember(task: str | None, env: AnyEnvConfig, agent: AgentConfig) -> None:
    """Remember the code with which the user trains, so that the run can be opened on this machine later."""
    specs = [] if task is None or not _is_code(task) else [task]
    specs += [env.label] if isinstance(env, GymnasiumConfig) and _is_code(env.label) else []
    specs += [to_plain(function) for function in collect_functions(env).values()]
    specs += [spec for _, spec in _find_classes(to_plain(agent))]
    wanted = [
        spec
        for spec in specs
        if not _is_provided(spec.partition(":")[0]) and not (_WITHOUT_NAME.search(spec) or _TASK_FILE.search(spec))
    ]
    new = [spec for spec in dict.fromkeys(wanted) if spec not in _read_named() and spec.isprintable()]
    _named.update(new)
    file = _named_file()
    if not new or file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab") as named:
            named.write("".join(f"{spec}\n" for spec in new).encode())
    except OSError:
        return  # the run is trained all the same; to open it in another process takes --trust-run


def _read_named() -> set[str]:
    """Return the tasks, functions and classes with which this user has trained on this machine."""
    file = _named_file()
    try:
        lines = set() if file is None else set(file.read_bytes().decode(errors="replace").split("\n"))
    except OSError:
        lines = set()
    return (lines | _named) - {""}


def _named_file() -> Path | None:
    root = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        return (root if root.is_absolute() else Path.home() / ".local" / "state") / "mjtrain" / "trained-from"
    except RuntimeError:  # this user has no home
        return None


def _is_code(task: str) -> bool:
    """Whether a task is a file or a module, or imports one; the others are in a registry."""
    if task.startswith(MJLAB):
        return False
    return ":" in task.removeprefix(GYMNASIUM) or task.endswith(".py")


def _file_of(task: str) -> Path | None:
    return Path(task) if task.endswith(".py") else task_file(task)


def _is_provided(module: str) -> bool:
    """Whether a module is of mjtrain, or of a distribution that registers tasks or learners."""
    top = module.partition(".")[0]
    if top == "mjtrain" or _OWN.match(module):
        return _OWN.match(module) is not None
    return any(entry.module.partition(".")[0] == top for group in _GROUPS for entry in find_entry_points(group))


def _module_of_class(spec: str) -> str:
    """Return the module of a class by its name; empty for what does not look like a class at the top of a module."""
    found = re.fullmatch(r"([a-z_][\w.]*)[:.]([A-Z]\w*)", spec)
    return found[1] if found else ""


def _find_classes(plain: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield what a recorded agent names by module, with its place."""
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield from _find_classes(value, f"{path}.{key}")
    elif isinstance(plain, list):
        for value in plain:
            yield from _find_classes(value, path)
    elif isinstance(plain, str) and (
        re.fullmatch(r"[\w.]+:[\w.]+", plain) or (path.endswith(".class_name") and not plain.isidentifier())
    ):
        yield path, plain


def check_teacher(run_dir: Path, network: Any) -> None:
    """Look whether the classes of a network are known that a training takes from another run."""
    for path, spec in _find_classes(to_plain({"teacher": network})):
        if spec not in _read_named() and not _is_provided(_module_of_class(spec)):
            raise RequestError(
                f"{run_dir}: would run code that its record names: {path.removeprefix('.')} {spec}; give the network "
                "in the agent's algorithm (DistillationConfig(teacher=ModelConfig(…))) to run it"
            )
