"""Configs as plain values, for YAML and JSON."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def to_plain(value: Any) -> Any:
    """Turn a config into dictionaries, lists, strings and numbers.

    Args:
        value: A config dataclass, or anything inside one.

    Returns:
        The same content without Python types: functions and classes become "module:qualified.name", tuples lists.

    Raises:
        TypeError: Something in it is neither a number nor text nor a collection of them.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if callable(value):
        return f"{value.__module__}:{value.__qualname__}"
    if hasattr(value, "tolist"):  # numbers and arrays of numpy and torch
        return to_plain(value.tolist())
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"a config holds {value!r} of type {type(value).__name__}; give numbers, strings and tuples")
