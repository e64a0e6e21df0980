"""How tyro reads mjtrain's configs."""

import contextlib
import dataclasses
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, TypeVar, get_type_hints

import docstring_parser
import tyro

from mjtrain.config import GpuIds, LaunchConfig, PlayConfig, RunConfig, RunToResume
from mjtrain.errors import RequestError

ConfigT = TypeVar("ConfigT")

REGISTRY = tyro.constructors.ConstructorRegistry()

_hidden: frozenset[str] = frozenset()
"""Fields that are no flags for now."""


@contextlib.contextmanager
def hiding(fields: frozenset[str]) -> Iterator[None]:
    """Leave fields of the flat configs out, by name, for a help page that is to be short."""
    global _hidden
    before, _hidden = _hidden, fields
    try:
        yield
    finally:
        _hidden = before


def parse(config_type: type[ConfigT], args: Sequence[str], *, prog: str, default: Any = None, **kwargs: Any) -> ConfigT:
    """Read a config from arguments.

    Args:
        config_type: Dataclass to fill.
        args: Arguments without the program's name.
        prog: Program's name for help and errors.
        default: Values for what the arguments leave out; by default those of the type.
        **kwargs: Handed on to `tyro.cli`.

    Raises:
        RequestError: The arguments are wrong; one line says how.
        SystemExit: Help was asked for and printed.
    """
    return _run_tyro(config_type, args, prog, default, kwargs)


def parse_known(
    config_type: type[ConfigT], args: Sequence[str], *, prog: str, **kwargs: Any
) -> tuple[ConfigT, list[str]]:
    """Read what belongs to a config, and return it with the arguments that do not; otherwise as `parse`."""
    return _run_tyro(config_type, args, prog, None, {**kwargs, "return_unknown_args": True})


def _run_tyro(config_type: Any, args: Sequence[str], prog: str, default: Any, options: dict[str, Any]) -> Any:
    boxes = io.StringIO()
    try:
        with contextlib.redirect_stderr(boxes):
            return tyro.cli(
                config_type,
                args=args,
                prog=prog,
                registry=REGISTRY,
                config=(tyro.conf.SuppressFixed, tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff),
                **({} if default is None else {"default": default}),
                **options,
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        _raise_usage_error(boxes.getvalue())


def _raise_usage_error(boxes: str) -> NoReturn:
    """Say in one line what tyro says in a box: a title, a message, perhaps suggestions, and where help is.

    The box is drawn in Unicode or, where the terminal has none, in ASCII.
    """
    sections = re.split(r"[─-]{4,}", re.sub(r"[╭╮╰╯│]", "", boxes))
    message, *more = [" ".join(section.split()) for section in sections[1:]]
    if flags := re.match(r"Unrecognized options: (.*)", message):
        words = [word for word in flags[1].split(", ") if word]
        kind = "unknown flag" if words[0].startswith("-") else "unexpected argument"
        message = f"{kind} {' '.join(words)}"
    for section in more:
        if section.startswith("Perhaps you meant"):
            similar = dict.fromkeys(re.findall(r"--[a-z][a-z0-9.-]*", section))
            similar.pop("--help", None)
            message += f"; did you mean {' or '.join(similar)}?" if similar else ""
    raise RequestError(message)


@REGISTRY.primitive_rule
def _gpu_ids(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Read --gpu-ids 0 1, all, or None."""
    if info.type != GpuIds:
        return None

    def read(words: list[str]) -> GpuIds:
        if len(words) == 1 and words[0].lower() in ("all", "auto", "none"):
            word = words[0].lower()
            return None if word == "none" else word  # pyright: ignore[reportReturnType]
        try:
            return tuple(int(word) for word in words)
        except ValueError:
            raise RequestError(f"{' '.join(words)}: give indices such as 0 1, all, or None for the CPU") from None

    def show(value: GpuIds) -> list[str]:
        return [str(index) for index in value] if isinstance(value, tuple) else [str(value)]

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="INDEX [INDEX ...]|all|None",
        instance_from_str=read,
        is_instance=lambda value: value in ("all", "auto", None) or isinstance(value, tuple),
        str_from_instance=show,
    )


@REGISTRY.primitive_rule
def _resume(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Read --resume, with a value or without."""
    if info.type != RunToResume:
        return None

    def read(words: list[str]) -> RunToResume:
        if len(words) > 1:
            raise RequestError(f"{' '.join(words)}: give one run directory or URL, or none for the newest run")
        return words[0] if words else True

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="[RUN|URL|auto]",
        instance_from_str=read,
        is_instance=lambda value: value is None or value is True or isinstance(value, str),
        str_from_instance=lambda value: [str(value)],
    )


@REGISTRY.struct_rule
def _flat_config(info: tyro.constructors.StructTypeInfo) -> tyro.constructors.StructConstructorSpec | None:
    """Read the configs whose fields are flags by their own names; tyro itself keeps the line breaks of docstrings."""
    if info.type not in (LaunchConfig, PlayConfig, RunConfig):
        return None
    default = info.default if isinstance(info.default, info.type) else info.type()
    words = {param.arg_name: param.description or "" for param in docstring_parser.parse_from_object(info.type).params}
    types = get_type_hints(info.type, include_extras=True)
    return tyro.constructors.StructConstructorSpec(
        instantiate=info.type,
        fields=tuple(
            tyro.constructors.StructFieldSpec(
                name=field.name,
                type=types[field.name],
                default=getattr(default, field.name),
                helptext=" ".join(words[field.name].split()),
            )
            for field in dataclasses.fields(info.type)
            if field.name not in _hidden
        ),
    )


@REGISTRY.struct_rule
def _term_params(info: tyro.constructors.StructTypeInfo) -> tyro.constructors.StructConstructorSpec | None:
    """Make every parameter of a term a flag of its own, of the type of its default."""
    if info.type != dict[str, Any] or not isinstance(info.default, dict):
        return None
    return tyro.constructors.StructConstructorSpec(
        instantiate=dict,
        fields=tuple(
            tyro.constructors.StructFieldSpec(name=name, type=_infer_type(value), default=value, helptext=None)
            for name, value in info.default.items()
        ),
    )


def _infer_type(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple[tuple(_infer_type(item) for item in value)]  # pyright: ignore[reportInvalidTypeArguments]
    return dict[str, Any] if isinstance(value, dict) else type(value)
