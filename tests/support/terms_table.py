"""The tables of term functions in docs/terms.md, read from their signatures and docstrings."""

import functools
import importlib
import inspect
import operator
import re
import types
import typing
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import docstring_parser

DOCUMENT = Path(__file__).parents[2] / "docs" / "terms.md"
BEGIN, END = "<!-- table of terms: begin -->\n", "<!-- table of terms: end -->\n"
SUBJECTS = (
    "observations",
    "root",
    "rewards",
    "terminations",
    "events",
    "randomization",
    "appearance",
    "velocity",
    "gait",
    "reach",
    "targets",
    "objects",
    "tracking",
)
HELPERS = {"moving", "swing", "outside"}
"""Functions that terms share. They are not terms."""

LEADING = {
    ("env",): "",
    ("env", "worlds"): "event",
    ("env", "level"): "curriculum",
    ("env", "drawn", "before"): "refine",
    ("env", "values"): "steer",
    ("estimated", "true"): "estimate error",
}
"""Positional parameters of a function, and the kind of term that follows from them."""

COMMON = {
    "joint": "Name of a joint",
    "joints": "Regular expressions over slides and hinges",
    "sensor": "Name of a sensor",
    "sensors": "Regular expressions over sensors",
    "command": "Name of a command term",
    "std": "Error at which the value is 1/e, in the unit of the error",
    "threshold": "Largest deviation, in the unit of what is compared",
    "ahead": "How many env steps ahead the frame is",
    "bodies": "Regular expressions over bodies",
    "position_sensor": "Name of a framepos sensor on the tool, in m",
    "orientation_sensor": "Name of a framequat sensor on the tool",
    "object": "Name of the free joint",
    "body": "Name of the body",
    "actuators": "Regular expressions over actuators",
    "x": "Bounds, in m",
    "y": "Bounds, in m",
    "z": "Bounds, in m",
    "success": "Name of the success term",
    "tolerance_m": "Scale of the distance, in m",
    "frequency_hz": "Strides per second",
    "offsets": "Phase of each foot at the start, in strides",
    "duty": "Fraction of a stride for which a foot stands",
    "velocity_sensor": "A velocimeter on the body. None: the command alone decides who stands",
    "stopped_below": "Planar velocity below which the robot has stopped, in m/s",
    "geoms": "Regular expressions over geoms",
    "materials": "Regular expressions over materials",
    "lights": "Regular expressions over lights; one without a name is called by its number",
    "cameras": "Regular expressions over the names in `EnvConfig.cameras`",
    "red": "Bounds of the red channel, within 0..1",
    "green": "Bounds of the green channel",
    "blue": "Bounds of the blue channel",
}
"""What a parameter of this name is where the docstring of a function does not say."""

OF_SUBJECT = {
    "root.joint": "Name of the free joint, or of the hinge of a planar root",
    "velocity.joint": "Name of the free joint",
    "targets.joints": "Regular expressions over the joints of the command",
}
"""The same in one module."""


def list_terms(module: ModuleType) -> list[Callable[..., Any]]:
    """Return the term functions of a module of `mjtrain.mdp`, in their order."""
    return [
        function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_") and name not in HELPERS
    ]


def make_table() -> str:
    """Return one table for each module, as Markdown."""
    parts = []
    for subject in SUBJECTS:
        module = importlib.import_module(f"mjtrain.mdp.{subject}")
        functions = sorted(list_terms(module), key=lambda function: function.__code__.co_firstlineno)
        title = (module.__doc__ or "").splitlines()[0]
        rows = [_make_row(subject, function) for function in functions]
        head = "| function | kind | parameters | description |\n|---|---|---|---|\n"
        parts.append(f"### `{subject}`\n\n{title}\n\n{head}{''.join(rows)}")
    return "\n".join(parts)


def describe(subject: str, function: Callable[..., Any]) -> tuple[str, list[str], str]:
    """Return the kind of term, a line for each parameter, and what it is, from the signature and the docstring.

    Raises:
        AssertionError: A parameter is not described, or the docstring gives no shape where something is returned.
    """
    where = f"{subject}.{function.__name__}"
    docstring = docstring_parser.parse(inspect.getdoc(function) or "")
    described = {param.arg_name: " ".join((param.description or "").split()) for param in docstring.params}
    parameters = inspect.signature(function).parameters.values()
    leading = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
    lines = []
    for parameter in parameters:
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        words = described.get(parameter.name) or OF_SUBJECT.get(
            f"{subject}.{parameter.name}", COMMON.get(parameter.name)
        )
        assert words, f"{where}: the docstring does not say what {parameter.name} is"
        lines.append(f"`{_declare(function, parameter)}` {words.rstrip('.')}")
    returned = docstring.returns.description if docstring.returns else ""
    text = inspect.getdoc(function) or ""
    shape = re.findall(r"[Ss]hape \((?:[^()]|\([^()]*\))*\)", text)
    kind = LEADING[leading] or _tell_kind(where, subject, function.__name__, shape, "Boolean, shape" in text)
    what = " ".join(f"{docstring.short_description or ''} {docstring.long_description or ''} {returned or ''}".split())
    return kind, lines, what


def _make_row(subject: str, function: Callable[..., Any]) -> str:
    kind, lines, what = describe(subject, function)
    cells = (f"`{function.__name__}`", kind, "<br>".join(lines), what)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _declare(function: Callable[..., Any], parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    if isinstance(annotation, str):  # of a module with `from __future__ import annotations`
        annotation = eval(annotation, inspect.unwrap(function).__globals__)
    annotation = _without_limits(annotation)
    kind = getattr(annotation, "__name__", None)
    if kind is None or "[" in str(annotation) or "|" in str(annotation):
        kind = re.sub(r"^Optional\[(.*)\]$", r"\1 | None", str(annotation).replace("typing.", ""))
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}: {kind}{default}"


def _without_limits(annotation: Any) -> Any:
    """Return a type without what `Annotated` says of it, also within `| None`."""
    if typing.get_origin(annotation) is typing.Annotated:
        return typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, map(_without_limits, typing.get_args(annotation)))
    return annotation


def _tell_kind(where: str, subject: str, name: str, shape: list[str], is_boolean: bool) -> str:
    assert shape, f"{where}: the docstring gives no shape"
    if name.endswith("_command"):
        return "command"
    if shape[-1].replace("Shape", "shape") != "shape (num_envs,)":
        return "controller" if subject in ("gait", "reach") and "num_actions" in shape[-1] else "observation"
    if name in ("reached", "motion_completed"):
        return "success"
    if is_boolean:
        return "termination"
    return "error" if name.endswith(("_error", "distance", "mpkpe")) or name == "angle" else "reward"
