"""Conversion of configs to plain values for YAML and JSON, and back; the functions of terms and their parameters."""

import dataclasses
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

Load = Callable[[str, str], Any]

_read_kinds = cache(typing.get_type_hints)


def to_plain(value: Any) -> Any:
    """Turn a config into dictionaries, lists, strings and numbers; raises a TypeError if it contains anything else.

    Functions and classes become "module:qualified.name", and tuples lists.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Enum):
        return to_plain(value.value)
    if callable(value):
        return _name_function(value)
    if hasattr(value, "tolist"):  # numbers and arrays of numpy and torch
        return to_plain(value.tolist())
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"a config holds {value!r} of type {type(value).__name__}; give numbers, strings and tuples")


def _name_function(function: Any) -> str:
    """Name a function or class; a wrapper that has taken the name of another function is named where it was made."""
    name, code = f"{function.__module__}:{function.__qualname__}", getattr(function, "__code__", None)
    found, inner = find_imported(name), getattr(function, "__wrapped__", None)
    if code is None or inner is None or function.__globals__["__name__"].startswith("torch."):
        return name  # what torch wraps computes the same
    while inner is not None and inner is not found:  # two wrappers of one decorator have the same code
        inner = getattr(inner, "__wrapped__", None)
    is_other = inner is not None or getattr(found, "__code__", code) != code
    return f"{function.__globals__['__name__']}:{code.co_qualname}" if is_other else name


def from_plain(
    kind: Any,
    value: Any,
    name: str = "",
    functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    load: Load | None = None,
) -> Any:
    """Turn the result of `to_plain` back into a config.

    Args:
        kind: Type of the result, such as EnvConfig. For Any, lists become tuples.
        value: Plain content. Fields that are missing take their defaults.
        name: Path of the value in the config, for messages.
        functions: What `collect_functions` returned. Where the content names one of them at its path, it is
            taken and nothing is imported.
        load: Takes "module:qualified.name" and the path, and returns what they name. Default: `import_function`.

    Raises:
        ValueError: The content does not fit the type, or names a function that cannot be imported.
    """
    if dataclasses.is_dataclass(kind):
        return _make_dataclass(kind, value, name, functions, load)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else from_plain(_choose(arguments, value), value, name, functions, load)
    if origin is dict and isinstance(value, dict):
        return {key: from_plain(arguments[1], item, f"{name}.{key}", functions, load) for key, item in value.items()}
    if origin is tuple and isinstance(value, list):
        kinds = [arguments[0]] * len(value) if arguments[1:] == (...,) else arguments
        pairs = zip(kinds, value, strict=False)
        return tuple(from_plain(item_kind, item, name, functions, load) for item_kind, item in pairs)
    if origin is Callable or kind is Callable:
        known = functions.get(name)
        if known is not None and value in (to_plain(known), f"{known.__module__}:{known.__qualname__}"):
            return known  # runs of before have the latter name of a wrapper
        return (load or import_function)(value, name)
    return _freeze(value)


def _make_dataclass(
    kind: Any, value: Any, name: str, functions: Mapping[str, Callable[..., Any]], load: Load | None
) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{name or kind.__name__} is {value!r}, not a mapping")
    kinds = _read_kinds(kind)
    unknown = [key for key in value if key not in kinds]
    if unknown:
        raise ValueError(
            f"{name or kind.__name__} has {', '.join(map(str, unknown))}, which this version of mjtrain does not know"
        )
    prefix = f"{name}." if name else ""
    try:
        return kind(
            **{key: from_plain(kinds[key], item, f"{prefix}{key}", functions, load) for key, item in value.items()}
        )
    except TypeError as error:  # a field without a default is missing
        raise ValueError(f"{name or kind.__name__}: {error}") from error


def _choose(kinds: tuple[Any, ...], value: Any) -> Any:
    """Return the member of a union that fits a plain value."""
    configs = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
    if configs and isinstance(value, dict):
        return next(
            (kind for kind in configs if {field.name for field in dataclasses.fields(kind)} >= set(value)), configs[0]
        )
    for kind in kinds:
        if typing.get_origin(kind) is tuple and isinstance(value, list):
            return kind
        if (typing.get_origin(kind) is Callable or kind is Callable) and isinstance(value, str):
            return kind
    return Any


def _freeze(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_freeze(item) for item in value)
    return {key: _freeze(item) for key, item in value.items()} if isinstance(value, dict) else value


def import_function(spec: Any, name: str) -> Any:
    """Return what "module:qualified.name" names, or raise a ValueError that says where it stood."""
    module_name, _, qualified_name = str(spec).partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in qualified_name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name} is {spec}, which cannot be imported ({error})") from error
    return found


def find_imported(spec: str) -> Any:
    """Return what "module:qualified.name" names if its module is imported already; None otherwise."""
    module_name, _, qualified_name = spec.partition(":")
    found: Any = sys.modules.get(module_name)
    for part in qualified_name.split("."):
        found = vars(found).get(part) if isinstance(found, types.ModuleType | type) else None
    return found


def collect_functions(config: Any, name: str = "") -> dict[str, Callable[..., Any]]:
    """Return the functions in a config by their paths, such as rewards.upright.func."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        parts = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    elif isinstance(config, Mapping):
        parts = {str(key): item for key, item in config.items()}
    else:
        return {name: config} if callable(config) else {}
    prefix = f"{name}." if name else ""
    return {
        path: function
        for key, part in parts.items()
        for path, function in collect_functions(part, f"{prefix}{key}").items()
    }


def is_importable(function: Callable[..., Any]) -> bool:
    """Return whether another process can import a function by the name that a run records of it.

    Functions of a script or a notebook, closures, lambdas and methods of an object cannot be imported.
    """
    if function.__module__ == "__main__":
        return False
    try:
        found = import_function(to_plain(function), "func")
    except ValueError:
        return False
    return getattr(found, "__self__", None) is getattr(function, "__self__", None)


def default_params(func: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults that can be recorded and set by flags: numbers, strings, booleans and tuples of them."""
    try:
        parameters = inspect.signature(func).parameters
    except (TypeError, ValueError):  # not a function, or a built-in one that does not say
        return {}
    return {name: parameter.default for name, parameter in parameters.items() if _is_plain(parameter.default)}


def with_default_params(record: Any) -> Any:
    """Complete the parameters of all terms in a recorded config with the defaults of their functions.

    Two records of the same run are then equal, whether or not they spell the defaults out. Functions whose modules are
    not imported keep the parameters that are there.
    """
    if isinstance(record, list):
        return [with_default_params(item) for item in record]
    if not isinstance(record, dict):
        return record
    completed = {key: with_default_params(item) for key, item in record.items()}
    for func, params in (("func", "params"), ("refine", "refine_params")):
        if isinstance(completed.get(func), str) and isinstance(completed.get(params), dict):
            function = find_imported(completed[func])  # a record must not have anything imported
            completed[params] = to_plain(default_params(function)) | completed[params]
    return completed


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(item) for item in value)
    return isinstance(value, bool | int | float | str)
