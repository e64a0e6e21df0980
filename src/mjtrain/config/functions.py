"""The functions of a config's terms: where they are, and their parameters, read from their signatures."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from mjtrain.config.plain import find_imported, import_function, to_plain


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

    Functions of a script or a notebook, closures and lambdas cannot be imported.
    """
    if function.__module__ == "__main__":
        return False
    try:
        import_function(to_plain(function), "func")
    except ValueError:
        return False
    return True


def default_params(func: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a function's parameters that can be recorded and set by flags, in order.

    These are numbers, strings, booleans and tuples of them.
    """
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
