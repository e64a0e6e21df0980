"""How tyro reads mjtrain's configs, and flags that it alone cannot read: short, repeated, joined, of new names."""

import ast
import contextlib
import dataclasses
import io
import os
import re
import shutil
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import takewhile
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_type_hints

import docstring_parser
import tyro

from mjtrain.config import (
    AnyEnvConfig,
    CameraConfig,
    EnvConfig,
    GpuIds,
    LaunchConfig,
    PlayConfig,
    RobotConfig,
    RunConfig,
    RunToResume,
)
from mjtrain.config.env import Scale
from mjtrain.runtime.errors import RequestError

ConfigT = TypeVar("ConfigT")
PartT = TypeVar("PartT")
EnvT = TypeVar("EnvT", bound=AnyEnvConfig)

REGISTRY = tyro.constructors.ConstructorRegistry()
MARKERS = (
    tyro.conf.SuppressFixed,
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.HelptextFromCommentsOff,
    tyro.conf.AvoidSubcommands,
)

FLAT_CONFIGS: set[Any] = {LaunchConfig, PlayConfig, RunConfig}
"""Dataclasses whose fields are flags by their own names."""

_hides_rare = False
"""Whether fields that are marked as rare are left out."""

_named: frozenset[str] | None = None
"""The names in the flags that are read; fields with other names keep their defaults without a flag. None: all flags."""

_METAVARS = {"INT": "a whole number", "FLOAT": "a number", "{None}": "None", "STR": "a word"}
"""What tyro calls the types of values, in words."""

_find_types = cache(partial(get_type_hints, include_extras=True))


@contextlib.contextmanager
def without_rare() -> Iterator[None]:
    """Leave out the fields that are marked as rare (`config.launch.RARE`), for a short help page."""
    global _hides_rare
    _hides_rare = True
    try:
        yield
    finally:
        _hides_rare = False


def parse(config_type: type[ConfigT], args: Sequence[str], *, prog: str, default: Any = None, **kwargs: Any) -> ConfigT:
    """Read a config from arguments, first with the flags that they name only, which takes a tenth of the time.

    Help that was asked for is printed, and ends the process.
    """
    if default is None and dataclasses.is_dataclass(config_type):
        FLAT_CONFIGS.add(config_type)
    global _named
    flags = [arg.partition("=")[0] for arg in args if arg.startswith("-")]
    if not any(flag.startswith(("-h", "--help", "--tyro")) for flag in flags):
        names = {name for flag in flags for name in flag[2:].replace("-", "_").split(".")}
        _named = frozenset(names | {name.removeprefix("no_") for name in names})
        try:
            return _read(config_type, args, prog, default, kwargs)
        except RequestError:
            pass  # said with all flags, of which one may have been meant
        finally:
            _named = None
    return _read(config_type, args, prog, default, kwargs)


def _read(config_type: Any, args: Sequence[str], prog: str, default: Any, options: dict[str, Any]) -> Any:
    """Read arguments with the flags that `_named` leaves."""
    boxes = io.StringIO()
    if "description" in options:  # tyro wraps everything else, and joins lines that are not indented
        words, width = " ".join(options["description"].split()), shutil.get_terminal_size().columns
        options = {**options, "description": textwrap.fill(words, width, subsequent_indent="  ")}
    try:
        with contextlib.redirect_stderr(boxes), warnings.catch_warnings():
            # Of defaults of a wrong type, the check of terms says more.
            warnings.simplefilter("ignore", UserWarning)
            return tyro.cli(
                config_type,
                args=args,
                prog=prog,
                registry=REGISTRY,
                config=MARKERS,
                **({} if default is None else {"default": default}),
                **options,
            )
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        _raise_usage_error(boxes.getvalue())


def _raise_usage_error(boxes: str) -> NoReturn:
    """Raise a one-line error with what tyro prints: a title, a message, perhaps suggestions, and a help hint."""
    # They are in a box, which is drawn in Unicode, or in ASCII if the terminal cannot show Unicode.
    sections = re.split(r"[─-]{4,}", re.sub(r"[╭╮╰╯│]", "", boxes))
    message, *more = sections[1:]
    message = _put_flag_first(" ".join(message.split()))
    if flags := re.match(r"Unrecognized options: (.*)", message):
        words = [word for word in flags[1].split(", ") if word]
        kind = "unknown flag" if words[0].startswith("-") else "unexpected argument"
        message = f"{kind} {' '.join(words)}"
    for section in more:
        if "Perhaps you meant" in section:  # help texts, which may name other flags, are further to the right
            similar = dict.fromkeys(re.findall(r"^\W{1,6}(--[a-z][a-z0-9.-]*)", section, re.MULTILINE))
            similar.pop("--help", None)
            message += f"; did you mean {' or '.join(similar)}?" if similar else ""
    raise RequestError(message)


def _put_flag_first(message: str) -> str:
    """Say what was wrong about a value as all other errors do: flag, value, and what would be right."""
    if choice := re.match(r"invalid choice '(.*)' for argument '(.*)'\. Expected one of \((.*)\) ?\.$", message):
        words = choice[3].replace("'", "").split(", ")
        if "None" in words:  # tyro takes them from a set then
            words.sort(key=lambda word: (word == "None", word))
        return f"{choice[2]} {choice[1]}: choose from {', '.join(words)}"
    if wrong := re.match(r"Error parsing (\S+): no type matching (\S+) could be instantiated from \[(.*?)\]", message):
        kinds = [_METAVARS.get(kind, kind) for kind in wrong[2].split("|")]
        return f"{wrong[1]} {wrong[3].replace(chr(39), '').replace(',', '')}: give {' or '.join(reversed(kinds))}"
    if wrong := re.match(r"Error parsing (\S+): (could not convert|invalid literal).* '(.*)'$", message):
        return f"{wrong[1]} {wrong[3]}: give {'a number' if wrong[2].startswith('could') else 'a whole number'}"
    if wrong := re.match(r"Error parsing (\S+): (.*: give .*)$", message):  # of a rule below
        return f"{wrong[1]} {wrong[2]}"
    if wrong := re.match(r"Error parsing \w+: (--.*)$", message):  # of a struct rule
        return wrong[1]
    if missing := re.match(r"Missing value for argument '(.*)'\. Expected (\d+) values\.$", message):
        return f"{missing[1]}: a value is missing; give {missing[2]}"
    return message


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

    return _describe(read, "INDEX [INDEX ...]|all|None")


@REGISTRY.primitive_rule
def _pairs(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Read pairs of a regular expression and a value, such as .*_hip 0.1 .*_knee -1.2; for a scale also one number."""
    takes_number = info.type == Scale
    if not takes_number and info.type not in (dict[str, float], dict[str, str]):
        return None
    kind: type[float] | type[str] = str if info.type == dict[str, str] else float

    def read(words: list[str]) -> Any:
        try:
            if takes_number and len(words) == 1:
                return float(words[0])
            return dict(zip(words[::2], map(kind, words[1::2]), strict=True))
        except ValueError:
            what = "a number, or pairs" if takes_number else "pairs"
            raise RequestError(f"{' '.join(words)}: give {what} of an expression and a {kind.__name__}") from None

    return _describe(read, f"{'FLOAT|' if takes_number else ''}PATTERN {kind.__name__.upper()} [...]")


@REGISTRY.primitive_rule
def _resume(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Read --resume, with a value or without."""
    if info.type != RunToResume:
        return None

    def read(words: list[str]) -> RunToResume:
        if len(words) > 1:
            raise RequestError(f"{' '.join(words)}: give one run directory or URL, or none for the newest run")
        return words[0] if words else True

    return _describe(read, "[RUN|URL|auto]")


@REGISTRY.struct_rule
def _config(info: tyro.constructors.StructTypeInfo) -> tyro.constructors.StructConstructorSpec | None:
    """Read a dataclass with the fields that flags name, and options: tyro keeps the line breaks of docstrings."""
    is_flat, has_default = info.type in FLAT_CONFIGS, type(info.default) is info.type
    if not is_flat and (_named is None or not dataclasses.is_dataclass(info.type) or not has_default):
        return None
    default: Any = info.default if has_default else info.type()
    words, types = _read_docstrings(info.type) if _named is None else {}, _find_types(info.type)
    return tyro.constructors.StructConstructorSpec(
        instantiate=partial(_replace if is_flat else dataclasses.replace, default),
        fields=tuple(
            tyro.constructors.StructFieldSpec(
                name=field.name,
                type=_without_empty_default(types[field.name], getattr(default, field.name), words.get(field.name, "")),
                default=getattr(default, field.name),
                helptext=" ".join(words.get(field.name, "").split()),
            )
            for field in dataclasses.fields(info.type)
            if field.init
            and not (_hides_rare and field.metadata.get("rare"))
            and _is_named(field.name, types[field.name])
        ),
    )


def _replace(default: Any, **given: Any) -> Any:
    """Return options with what was given; an empty word is refused where a text does not say what it stands for."""
    for name, value in given.items():
        if value == "" != getattr(default, name) and '""' not in _read_docstrings(type(default))[name]:
            raise RequestError(f"--{name.replace('_', '-')} '': is empty; give a value, or leave it out")
    return dataclasses.replace(default, **given)


def _is_named(name: str, kind: Any) -> bool:
    """Return whether a flag may set a field: by its name, or by another name where the field's type says so."""
    if _named is None or name.replace("-", "_") in _named:
        return True
    is_flat = any(kind is config for config in FLAT_CONFIGS)
    return is_flat or any(type(word).__module__.startswith("tyro.") for word in get_args(kind)[1:])


@cache
def _read_docstrings(config_type: type) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields; tyro asks for them several times per parser."""
    return {
        param.arg_name: param.description or ""
        for base in reversed(config_type.__mro__[:-1])  # the docstring of a class has no fields of its bases
        for param in docstring_parser.parse_from_object(base).params
    }


def _without_empty_default(kind: Any, default: Any, text: str) -> Any:
    """Keep tyro from adding "(default: None)" to a text that says what happens without the flag, and "(default: )"."""
    explained = re.search(r"\bDefault: |\bLeft out: ", text) is not None
    if default in ((), "") or (explained and default in (None, "auto")):
        return Annotated[kind, tyro.conf.arg(help_behavior_hint="")]
    return kind


@REGISTRY.struct_rule
def _term_params(info: tyro.constructors.StructTypeInfo) -> tyro.constructors.StructConstructorSpec | None:
    """Make every parameter of a term a separate flag of the type of its default."""
    if info.type != dict[str, Any] or not isinstance(info.default, dict):
        return None
    return tyro.constructors.StructConstructorSpec(
        instantiate=dict,
        fields=tuple(
            tyro.constructors.StructFieldSpec(name=name, type=_infer_type(value), default=value, helptext=None)
            for name, value in info.default.items()
        ),
    )


def _infer_type(value: Any, is_nested: bool = False) -> Any:
    if value == ():
        return tuple[int | float | str, ...]
    if isinstance(value, tuple):
        if not is_nested and all(isinstance(item, str) for item in value):  # names, or expressions over them
            return tuple[str, ...]
        return tuple[tuple(_infer_type(item, is_nested=True) for item in value)]  # pyright: ignore[reportInvalidTypeArguments]
    return dict[str, Any] if isinstance(value, dict) else type(value)


def expand_robot_file(args: Sequence[str]) -> list[str]:
    """Write `--env.robot FILE` as `--env.robot.file FILE`."""
    return [re.sub(r"^--env\.robot(?==|$)", "--env.robot.file", arg) for arg in args]


def expand_agent_flags(args: Sequence[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Split what an agent of a W&B sweep has joined: several flags with one value, and several values of a flag.

    `--agent.actor.hidden-dims,agent.critic.hidden-dims=64 64` becomes two flags with two values each. The agent makes
    such words of the configuration that `sweep --wandb` writes, and sets WANDB_SWEEP_ID; without it, all stays.
    """
    if "WANDB_SWEEP_ID" not in environ:
        return list(args)
    expanded = []
    for arg in args:
        names, equals, value = arg.partition("=")
        if not arg.startswith("--") or ("," not in names and " " not in value):
            expanded.append(arg)
            continue
        for name in names.removeprefix("--").split(","):
            expanded += [f"--{name}", *(value.split() if equals else ())]
    return expanded


def join_repeated(args: Sequence[str], flag: str) -> list[str]:
    """Write a flag that is given several times, with one or more values each, once with all of them."""
    others: list[str] = []
    values: list[str] = []
    taking = False
    for arg in args:
        name, equals, value = arg.partition("=")
        if re.match(r"-\D", arg):  # not a negative number
            taking = name.replace("_", "-") == flag
            if taking and equals:
                values.append(value)
        elif taking:
            values.append(arg)
        if not taking:
            others.append(arg)
    return [*others, flag, *values] if values else list(args)


def with_env(options: type[Any], env: AnyEnvConfig) -> Any:
    """Return a dataclass of options whose field `env` has the type of an environment that someone else wrote."""
    if isinstance(env, EnvConfig):
        return options
    return dataclasses.make_dataclass(
        options.__name__, [("env", type(env))], bases=(options,), frozen=True, kw_only=True
    )


def add_named_parts(env: EnvT, args: Sequence[str]) -> EnvT:
    """Add an empty part of the robot, camera or class for each name that flags mention and that is missing.

    So `--env.robot.sensors.imu.type gyro --env.robot.sensors.imu.object trunk` adds a sensor named imu,
    `--env.cameras.wrist.width 64` a camera named wrist, and `--env.cameras.wrist.classes.cube box` a class named cube.
    An environment that someone else wrote gets keyword arguments: `--env.kwargs.forward-reward-weight 2.0`.
    """
    if not isinstance(env, EnvConfig):
        return dataclasses.replace(env, kwargs=_add_keywords(env.kwargs, args))
    hints = {name: get_args(kind) for name, kind in get_type_hints(RobotConfig).items()}
    kinds: dict[str, Any] = {
        name: kind[1] for name, kind in hints.items() if len(kind) == 2 and dataclasses.is_dataclass(kind[1])
    }
    robot = {
        field: _add_names(getattr(env.robot, field), rf"--env\.robot\.{field}\.([^.=]+)\.", kind, args)
        for field, kind in kinds.items()
    }
    cameras = _add_names(env.cameras, r"--env\.cameras\.([^.=]+)\.", CameraConfig, args)
    for name, camera in cameras.items():
        either = re.sub("[-_]", "[-_]", re.escape(name).replace(r"\-", "-"))
        classes = _add_names(camera.classes, rf"--env\.cameras\.{either}\.classes\.([^.=]+)(?:=|$)", tuple, args)
        cameras[name] = dataclasses.replace(camera, classes=classes)
    return dataclasses.replace(env, robot=dataclasses.replace(env.robot, **robot), cameras=cameras)


def _add_keywords(kwargs: dict[str, Any], args: Sequence[str]) -> dict[str, Any]:
    """Return keyword arguments with a `_Word` for each that flags give a value of any type."""
    found = dict(kwargs)
    for at, arg in enumerate(args, start=1):
        if not (match := re.match(r"--env\.kwargs\.([^=]+)(?:=(.*))?$", arg, re.DOTALL)):
            continue
        name = match[1].replace("-", "_")
        if name in found:  # a number or None becomes another; a truth is also a flag without a value
            following = takewhile(lambda word: not word.startswith("--"), args[at:])
            words = list(following) if match[2] is None else [match[2]]
            is_read = isinstance(found[name], int | None) and words
            if isinstance(found[name], float | tuple | list) and len(words) == 1:
                is_read = isinstance(_read_keyword(words), tuple | None)
        else:
            is_read = not isinstance(
                found.get(name.removeprefix("no_"), found.get(name.partition(".")[0])), bool | dict
            )
        if is_read:
            found[name] = _Word("VALUE")
    return found


class _Word(str):
    """In place of a keyword argument whose type the value of its flag says."""


@REGISTRY.primitive_rule
def _keyword(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """Read a keyword argument of an external environment: a number, True, False, None, a tuple of them, or a word."""
    return _describe(_read_keyword, "VALUE", nargs=1) if info.type == _Word else None


def _read_keyword(words: list[str]) -> Any:
    try:
        value = ast.literal_eval({"true": "True", "false": "False"}.get(words[0], words[0]))
    except (ValueError, SyntaxError):
        return words[0]
    return value if isinstance(value, int | float | tuple | None) else words[0]


def _describe(
    read: Callable[[list[str]], Any], metavar: str, nargs: Any = "*"
) -> tyro.constructors.PrimitiveConstructorSpec[Any]:
    """Return how tyro reads words; of defaults of a wrong type, the check of terms says more."""

    def show(value: Any) -> list[str]:
        words = [word for pair in value.items() for word in pair] if isinstance(value, dict) else value
        return [str(word) for word in words] if isinstance(words, list | tuple) else [str(words)]

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=nargs, metavar=metavar, instance_from_str=read, is_instance=lambda _: True, str_from_instance=show
    )


def _add_names(
    parts: dict[str, PartT], pattern: str, make: Callable[[], PartT], args: Sequence[str]
) -> dict[str, PartT]:
    """Return the parts and a new one for each name that a flag has where the pattern has its group."""
    found = dict(parts)
    for arg in args:
        match = re.match(pattern, arg)
        if match and match[1].replace("-", "_") not in {part.replace("-", "_") for part in found}:  # tyro takes either
            found[match[1]] = make()
    return found
