"""Whether values are of the types and within the limits that a config's fields, or a function's parameters, declare."""

import dataclasses
import numbers
import types
import typing
from collections.abc import Callable
from typing import Any, Literal

from mjtrain.config.limits import Direction, Ordered, Range


def find_type_problems(kind: Any, value: Any, name: str, *, limits: bool = True) -> list[str]:
    """Compare a value with a type and the limits that are declared with it, fields and items included.

    Integers pass as floats, and lists as tuples. Types that are neither dataclasses, plain values nor collections of
    them are not looked into. Without limits, values are compared with the types alone.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        found = find_type_problems(arguments[0], value, name, limits=limits)
        if found or not limits:
            return found
        declared = [limit for limit in arguments[1:] if isinstance(limit, Range | Direction | Ordered)]
        return [f"{name} {problem}" for limit in declared if (problem := limit.find_problem(value))]
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, kind):
            return [f"{name}: is {show(value)}, not {with_article(kind.__name__)}"]
        own = [field.name for field in dataclasses.fields(kind)]
        if added := [field.name for field in dataclasses.fields(value) if field.name not in own]:
            return [
                f"{name}: is {show(value)} with the field {', '.join(added)}, which no run could be opened with; give "
                f"{with_article(kind.__name__)}"
            ]
        return _check_fields(kind, value, f"{name}.", limits=limits)
    if origin in (types.UnionType, typing.Union):
        members = [member for member in arguments if member is not types.NoneType]
        if value is None and len(members) < len(arguments):
            return []
        alike = [
            member
            for member in members
            if (dataclasses.is_dataclass(member) and type(value) is member)
            or (typing.get_origin(member) is dict and isinstance(value, dict))
        ]
        found = [find_type_problems(member, value, name, limits=limits) for member in alike or members]
        return [] if [] in found else min(found, key=len)
    if origin is Literal:
        return [] if value in arguments else [f"{name} {value}: choose from {', '.join(map(str, arguments))}"]
    if origin is dict:
        if not isinstance(value, dict):
            return [f'{name}: is {show(value)}; give a dict by name, such as {{"name": …}}']
        return [
            problem
            for key, item in value.items()
            for problem in find_type_problems(arguments[1], item, f"{name}.{key}", limits=limits)
        ]
    if origin is tuple:
        return _check_tuple(arguments, value, name, limits=limits)
    if origin is Callable or kind is Callable:
        return []  # the check of terms says more
    return [] if _is_plain(kind, value) else [f"{name}: is {show(value)}; give {_PLAIN.get(kind, kind)}"]


def find_option_problems(options: Any) -> list[str]:
    """Compare the fields of a config whose fields are flags, such as `RunConfig`, with their types and limits."""
    return _check_fields(type(options), options, "--")


def show(value: Any) -> str:
    """Name a value in one short line."""
    kind = type(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return with_article(kind.__name__)
    if isinstance(value, types.FunctionType):
        return f"the function {value.__name__}"
    if kind in (list, dict, set):
        return with_article(kind.__name__)
    text = " ".join(repr(value).split())
    text = text if len(text) <= 60 else f"{text[:57]}..."
    kinds = {str: "the string", tuple: "the tuple", float: "the number", int: "the number"}
    return f"{kinds[kind]} {text}" if kind in kinds else text


_PLAIN: dict[Any, str] = {str: "a string", int: "a whole number", float: "a number", bool: "True or False"}


def _is_plain(kind: Any, value: Any) -> bool:
    if kind is type(None):
        return value is None
    if kind in (int, float):
        wanted = numbers.Integral if kind is int else numbers.Real
        # Of the other numbers, files of runs can hold those of numpy only.
        known = isinstance(value, int | float) or hasattr(value, "tolist")
        return isinstance(value, wanted) and known and not isinstance(value, bool)
    return isinstance(value, kind) if kind in _PLAIN else True


def _check_fields(kind: Any, value: Any, prefix: str, *, limits: bool = True) -> list[str]:
    kinds = typing.get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(kind)]
    return [
        problem
        for name in names
        for problem in find_type_problems(
            kinds[name], getattr(value, name), f"{prefix}{name.replace('_', '-')}", limits=limits
        )
    ]


def _check_tuple(arguments: tuple[Any, ...], value: Any, name: str, *, limits: bool) -> list[str]:
    if isinstance(value, str):
        return [f'{name}: is the string {value!r}; give a tuple, such as ("{value}",)']
    if not isinstance(value, tuple | list):
        return [f"{name}: is {show(value)}; give a tuple"]
    if arguments[1:] == (...,):
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        return [f"{name}: has {len(value)} values, {show(value)}; give {len(arguments)}"]
    return [
        problem
        for kind, item in zip(arguments, value, strict=True)
        for problem in find_type_problems(kind, item, name, limits=limits)
    ]


def with_article(name: str) -> str:
    """Put the indefinite article before a word."""
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
