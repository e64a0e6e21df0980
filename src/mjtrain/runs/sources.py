"""The code of a task and the data that its parameters name, as a run keeps them."""

import ast
import dataclasses
import hashlib
import inspect
import operator
import os
import shutil
import stat
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.util import resolve_name
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mjtrain.config import AnyEnvConfig, EnvConfig
from mjtrain.config.plain import collect_functions
from mjtrain.env.catalog import file_module
from mjtrain.runs.claim import read_holder
from mjtrain.runs.run_dir import read_params
from mjtrain.runtime.errors import RequestError, count
from mjtrain.runtime.files import may_access, read_regular, write_whole

MAX_DATA_MIB = 256
"""Data beyond this is not copied, and is compared by the part before it."""

MAX_DATA_FILES = 10_000
"""The same of a folder with more files and folders than this."""

_PART = "part:"
"""What the digest of a part begins with."""

_CHUNK = 2**20

CODE_DIR = "code"
"""Folder in a run directory for the Python files of its task, below the names of their modules."""

DATA_DIR = "data"
"""Folder in a run directory for files that parameters of its terms name."""

_MAX_CODE_FILES = 200
_MAIN = "__main__"
_OWN = Path(__file__).parents[1]
_INSTALLED = tuple(f"{sysconfig.get_path(kind)}/" for kind in ("stdlib", "purelib", "platlib"))


def measure(path: Path) -> tuple[str, int]:
    """Measure a file, or all files of a folder with their names, in a time that the limits bound.

    Returns:
        The SHA-256, and the size in bytes. Beyond the limits, the digest is of what is before them, and begins with
        "part:"; the size is then that of what was looked at.
    """
    limit = MAX_DATA_MIB * 2**20
    if _kind_of(path) != stat.S_IFDIR:
        digest, size = _hash_file(path, limit)
        return (_PART if size > limit else "") + digest, size
    of_folder, size = hashlib.sha256(), 0
    for number, item in enumerate(_list_items(path)):
        if size > limit or number > MAX_DATA_FILES:
            return _PART + of_folder.hexdigest(), size
        if _kind_of(item) == stat.S_IFREG:
            of_file, bytes_of_file = _hash_file(item, limit)
            of_folder.update(f"{item.relative_to(path)}\0{of_file}\n".encode())
            size += bytes_of_file
    return (_PART if size > limit else "") + of_folder.hexdigest(), size


def with_digests(value: Any) -> Any:
    """Replace each file path in plain values by the file's digest: paths and contents may differ between hosts."""
    if isinstance(value, dict):
        return {name: with_digests(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [with_digests(part) for part in value]
    if isinstance(value, str) and _kind_of(Path(value)) == stat.S_IFREG and _names_file(value):
        return f"*{Path(value).suffix} with the digest {measure(Path(value))[0].removeprefix(_PART)[:12]}"
    return value


def _hash_file(path: Path, limit: int) -> tuple[str, int]:
    """Return the SHA-256 of the first bytes of a file, up to the limit, and its size."""
    digest, size = hashlib.sha256(), 0
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            for begin in range(0, min(size, max(limit, 1)), _CHUNK):  # by its size: some files of /proc have no end
                digest.update(file.read(min(_CHUNK, size - begin)))
    except OSError:  # it may not be read: its name and size are compared
        pass
    return digest.hexdigest(), size


def _kind_of(path: Path) -> int:
    """Return the format bits of the mode of a file, see `stat`; 0 where there is none, or where it may not be asked."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except (OSError, ValueError):
        return 0


def _list_items(path: Path) -> Iterator[Path]:
    """Yield a file, or a folder and all that is in it except runs, sorted by the parts of their paths."""
    waiting = [path]
    while waiting:
        item = waiting.pop()
        if item != path and read_holder(item) is not None:  # a run; the one that keeps the copy would copy itself
            continue
        yield item
        if _kind_of(item) == stat.S_IFDIR:
            try:
                waiting += sorted(item.iterdir(), reverse=True)
            except OSError:  # a folder that may not be read
                continue


def list_term_code(env: AnyEnvConfig, task_file: Path | None = None) -> dict[str, str]:
    """List the Python files of a task and its functions, and those that they import by statements at the top level.

    Returns:
        Absolute paths by the module, as in package/module.py, those of the task and its functions first; at most 200.
        mjtrain and installed packages are left out: a run records their versions. What a script imports is left out
        too, because it may belong to the launch.
    """
    waiting = _list_roots(env, task_file)
    found: dict[str, str] = {}
    for module, path in waiting:  # which grows
        if len(found) >= _MAX_CODE_FILES or _label(module, path) in found:
            continue
        found[_label(module, path)] = str(Path(path).resolve())
        if module != _MAIN:
            names = (module.rpartition(".")[0], *_list_imports(module, Path(path)))
            waiting += [(name, file) for name in names if (file := _find_file(name)) is not None and _is_own(file)]
    return found


def _list_roots(env: AnyEnvConfig, task_file: Path | None) -> list[tuple[str, str]]:
    """List module and file of a task and its functions; those of mjtrain and installed ones are left out."""
    roots = []
    if task_file is not None and task_file.is_file():
        roots.append((file_module(task_file), str(task_file.resolve())))
    for function in collect_functions(env).values():
        code = getattr(inspect.unwrap(function), "__code__", None)
        path = _find_file(function.__module__) if code is None else code.co_filename
        if path is not None and _is_own(path):
            roots.append((function.__module__, path))
    return roots


def _list_imports(module: str, path: Path) -> Iterator[str]:
    """Yield what a file imports as it is loaded: names of modules, and of what is taken from them."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    try:
        statements = ast.parse(_read(path) or b"").body
    except (SyntaxError, ValueError):  # it has been edited since it was loaded
        return
    for statement in statements:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and (package or not statement.level):
            with suppress(ImportError):  # the module that a function names may be another than that of its file
                source = resolve_name("." * statement.level + (statement.module or ""), package)
                yield from (source, *(f"{source}.{alias.name}" for alias in statement.names))


def _find_file(module: str) -> str | None:
    path = getattr(sys.modules.get(module), "__file__", None)
    return path if isinstance(path, str) else None


def list_code(env: AnyEnvConfig, task_file: Path | None = None) -> dict[str, str]:
    """List the files of `list_term_code`, and those of loaded modules below the same folders."""
    found = list_term_code(env, task_file)
    folders = tuple(f"{Path(path).resolve().parent}/" for _, path in _list_roots(env, task_file))
    for name in list(sys.modules):
        path = _find_file(name)
        if path is not None and path.startswith(folders or ("\0",)) and _is_own(path):
            found.setdefault(_label(name, path), path)
    unique = {path: label for label, path in reversed(found.items())}
    first = list(unique.items())[-_MAX_CODE_FILES:]  # the files of the task and its functions are among them
    return {label: path for path, label in sorted(first)}


def _is_own(path: str) -> bool:
    """Whether a file is Python code that is neither of mjtrain nor installed."""
    return (
        path.endswith(".py")
        and Path(path).is_file()
        and _OWN not in Path(path).resolve().parents
        and not path.startswith(_INSTALLED)
        and not {"site-packages", "dist-packages"} & set(Path(path).parts)
    )


def _label(module: str, path: str) -> str:
    place = module.replace(".", "/")
    return f"{place}/__init__.py" if Path(path).name == "__init__.py" else f"{place}.py"


def save_code(run_dir: Path, files: Mapping[str, str]) -> None:
    """Copy Python files, as `list_code` gives them, into a run. Copies that differ move to code/previous/NUMBER."""
    folder = run_dir / CODE_DIR
    contents = {label: _read(Path(path)) for label, path in files.items()}
    changed = {
        label: content
        for label, content in contents.items()
        if content is not None and _read(folder / label) != content
    }
    old = [label for label in changed if (folder / label).is_file()]
    if old:
        numbers = [int(path.name) for path in (folder / "previous").glob("[0-9]*")]
        kept = folder / "previous" / str(max(numbers, default=0) + 1)
        for label in old:
            (kept / label).parent.mkdir(parents=True, exist_ok=True)
            (folder / label).rename(kept / label)
    for label, content in changed.items():
        (folder / label).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / label, content)


def _read(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except OSError:
        return None


def list_code_changes(run_dir: Path, files: Mapping[str, str]) -> list[str]:
    """Compare the code of a task with the copies in a run; one of an earlier version of mjtrain has none."""
    return [
        f"code: {path} is not what the run was trained with, which is {run_dir / CODE_DIR / label}"
        for label, path in files.items()
        if label != f"{_MAIN}.py"
        and (copy := _read(run_dir / CODE_DIR / label)) is not None
        and copy != _read(Path(path))
    ]


def save_data(
    run_dir: Path, env: EnvConfig, origins: Mapping[str, str] = MappingProxyType({})
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Copy the files and folders that parameters of terms name into a run.

    Returns:
        What params/data.yaml records of them: copies and hashes, by path, or by origin for copied files that were
        fetched. And a line for each that is too large to be copied or cannot be read, and for each folder of which
        something cannot be copied.
    """
    record, notices, room = {}, [], MAX_DATA_MIB * 2**20
    earlier, copies = _read_record(run_dir), find_copies(run_dir)
    for place in _list_data(env):
        path = Path(place)
        digest, size = measure(path)
        name = origins.get(place, place)
        copy = earlier[name]["copy"] if name in copies and earlier[name]["sha256"] == digest else None
        is_part = digest.startswith(_PART)
        if copy is None and size <= room and not is_part and may_access(path, os.R_OK):
            copy, left_out = _copy(path, run_dir, digest)
            room -= size
            if left_out:
                missing = f"{count(len(left_out), 'item')} that cannot be read, such as {left_out[0]}"
                notices.append(f"the run's copy of {name} is without {missing}")
        elif copy is None:
            much = f"more than {MAX_DATA_MIB} MiB or {MAX_DATA_FILES} files"
            why = much if is_part else f"{size >> 20} MiB" if size > room else "it cannot be read"
            notices.append(f"the run keeps no copy of {name} ({why}), so it needs that later")
        record[place if copy is None else name] = {"copy": copy, "sha256": digest}
    return record, notices


def _copy(path: Path, run_dir: Path, digest: str) -> tuple[str, list[Path]]:
    """Copy a file or a folder to data/, and return its place in the run and what is left out. A copy there stays."""
    own = path.name if path.name.strip(".") else path.resolve().name  # of a folder such as ..
    folder, name, number = run_dir / DATA_DIR, own, 1
    while (folder / name).exists() and measure(folder / name)[0] != digest:
        number += 1
        name = f"copy-{number}/{own}"  # with the name of the file, by which terms may go
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    left_out = []
    for item in _list_items(path) if not (folder / name).exists() else ():
        copy, kind = folder / name / item.relative_to(path), _kind_of(item)
        if kind not in (stat.S_IFDIR, stat.S_IFREG) or not may_access(item, os.R_OK):  # a link to nothing, or a pipe
            left_out.append(item)
        elif kind == stat.S_IFDIR:
            copy.mkdir()
        else:
            shutil.copy(item, copy)
    return f"{DATA_DIR}/{name}", left_out


def _list_data(env: EnvConfig) -> list[str]:
    """List the texts in the parameters of terms that name an existing file or folder, each of them once."""
    motions = {str(term.params["file"]) for term in env.commands.values() if term.params.get("file")}
    # The folder of a motion needs no slash: the text is not a mere word.
    return [text for text in _list_texts(env) if _names_file(f"{text}/" if text in motions else text)]


def _list_texts(env: EnvConfig) -> dict[str, None]:
    """List the texts in the parameters of terms, each of them once."""
    found: dict[str, None] = {}

    def note(text: str | Path) -> str | Path:
        found[str(text)] = None
        return text

    _change_texts(env, note)
    return found


def _names_file(value: str) -> bool:
    """Whether a text is the path of a file, or has a slash and is that of a folder."""
    try:
        return (Path(value).is_file() and bool(Path(value).suffix or "/" in value)) or (
            "/" in value and Path(value).is_dir()
        )
    except (OSError, ValueError):  # too long, or with a null byte
        return False


def _read_record(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Return what a run recorded of its data, by what it recorded it for; entries that are damaged are left out."""
    record = read_params(run_dir, "data")
    return {name: kept for name, kept in record.items() if isinstance(name, str) and _is_whole(kept)}


def _is_whole(kept: Any) -> bool:
    """Whether an entry has what `save_data` writes."""
    if not isinstance(kept, dict) or not isinstance(kept.get("sha256"), str) or "copy" not in kept:
        return False
    return isinstance(kept["copy"], str | None)


def find_copies(run_dir: Path) -> dict[str, str]:
    """Return the absolute paths of the copies that a run has of its data, by what it recorded them for."""
    record = _read_record(run_dir)
    paths = {name: run_dir.absolute() / kept["copy"] for name, kept in record.items() if kept["copy"] is not None}
    return {name: str(path) for name, path in paths.items() if path.exists()}


def replace_data(env: EnvConfig, names: Mapping[str, str]) -> EnvConfig:
    """Replace texts in the parameters of terms by others."""
    return _change_texts(env, lambda text: names.get(str(text), text))


def restore_data(run_dir: Path, env: EnvConfig) -> tuple[EnvConfig, list[str]]:
    """Have a recorded environment name the run's copies of data that is missing, or has changed, which a line says."""
    places, notices, copies, named = {}, [], find_copies(run_dir), _list_texts(env)
    for place, kept in _read_record(run_dir).items():
        copy = copies.get(place)
        there = _kind_of(Path(place)) != 0
        if place not in named or (there and not _has_changed(Path(place), kept)):
            continue  # the record of an earlier start may still be there
        if copy is not None:
            places[place] = copy
        if there:
            used = f"; using the copy in the run, {copy}" if copy is not None else ", and the run has no copy"
            notices.append(f"data: {place} is not what the run was trained with{used}")
        elif copy is None:
            raise RequestError(f"{run_dir}: its file {place} is not here, and the run has no copy of it")
    return (replace_data(env, places) if places else env), notices


def _has_changed(path: Path, kept: Mapping[str, Any]) -> bool:
    """Compare data with its record. Earlier versions recorded the digest of all data, however large."""
    digest, recorded = measure(path)[0], kept["sha256"]
    is_comparable = kept["copy"] is not None or digest.startswith(_PART) == recorded.startswith(_PART)
    return is_comparable and digest != recorded


def move_data(env: EnvConfig, record: Mapping[str, dict[str, Any]]) -> tuple[EnvConfig, dict[str, dict[str, Any]]]:
    """Name copied data by its place relative to the run, in the record too, so that neither tells of this machine."""
    env = replace_data(env, {place: kept["copy"] for place, kept in record.items()})
    return env, {kept["copy"]: kept for kept in record.values()}


def _change_texts(value: Any, change: Callable[[str | Path], Any], *, in_params: bool = False) -> Any:
    """Return a config with other texts in the parameters of its terms; a part without them stays the same object."""
    if isinstance(value, Mapping):
        new = {key: _change_texts(item, change, in_params=in_params) for key, item in value.items()}
        return new if any(new[key] is not item for key, item in value.items()) else value
    if in_params and isinstance(value, list | tuple):
        items = [_change_texts(item, change, in_params=True) for item in value]
        return type(value)(items) if any(map(operator.is_not, items, value)) else value
    if in_params and isinstance(value, str | Path):
        return change(value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    params = ("params", "refine_params")
    new = {name: _change_texts(item, change, in_params=name in params) for name, item in fields.items()}
    changed = {name: item for name, item in new.items() if item is not fields[name]}
    return dataclasses.replace(value, **changed) if changed else value


def list_data_changes(run_dir: Path, env: AnyEnvConfig, origins: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return a line for each difference of the data that parameters name now from a run's record."""
    if not isinstance(env, EnvConfig):
        return []
    recorded = _read_record(run_dir)
    return [
        f"data: {name}, whose content differs"
        for place in _list_data(env)
        if (name := origins.get(place, place)) in recorded and _has_changed(Path(place), recorded[name])
    ]
