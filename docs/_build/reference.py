"""The generated parts of the reference as Markdown: commands from their `--help`, settings from their classes."""

import contextlib
import dataclasses
import inspect
import io
import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import docstring_parser

import mjtrain
from mjtrain import config
from mjtrain.cli.main import COMMANDS, main
from mjtrain.cli.motion import VERBS

SECTIONS = {
    "Tasks and runs": ("TaskConfig", "RunConfig", "TrainConfig", "PlayConfig", "LearnerConfig"),
    "Processes": ("LaunchConfig",),
    "Environment": ("EnvConfig", "TerrainConfig", "WarpConfig", "NanGuardConfig"),
    "Terms": (
        "ActionTerm",
        "ObservationTerm",
        "CommandTerm",
        "ErrorTerm",
        "RewardTerm",
        "TerminationTerm",
        "SuccessTerm",
        "EventTerm",
        "CurriculumTerm",
        "ControllerTerm",
    ),
    "Robot": (
        "RobotConfig",
        "ActuatorConfig",
        "SensorConfig",
        "SiteConfig",
        "GeomConfig",
        "LightConfig",
        "MountedCameraConfig",
        "KeyframeConfig",
        "NamesConfig",
        "OptionConfig",
        "MirrorConfig",
    ),
    "Cameras": ("CameraConfig",),
    "Agent": (
        "AgentConfig",
        "PpoConfig",
        "SymmetryConfig",
        "WarmStartConfig",
        "AuxiliaryConfig",
        "ImitationConfig",
        "DistillationConfig",
        "DaggerConfig",
        "ModelConfig",
        "CnnConfig",
        "DistributionConfig",
    ),
    "Environments of other packages": ("GymnasiumConfig", "VecEnvConfig", "MjlabConfig"),
}
"""The classes of `mjtrain.config` in the order in which the page has them."""

WIDE = 4000
"""Columns of the terminal for which help is printed: no line of it is wrapped then."""


class Flag(NamedTuple):
    """An option of a command, as its help prints it."""

    names: str
    """Its name, or several, and the kind of its value."""

    text: str
    """What it does, with its default at the end."""


class Help(NamedTuple):
    """A help page in its parts."""

    usage: str
    text: str
    flags: list[Flag]


def list_config_classes() -> list[str]:
    """Return the names of all public dataclasses of `mjtrain.config`."""
    return [name for name in config.__all__ if dataclasses.is_dataclass(getattr(config, name))]


def print_help(command: str) -> str:
    """Return what `mjtrain COMMAND --help` prints on a terminal of `WIDE` columns; of no command, `mjtrain --help`."""
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDE)
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # boxes are drawn in ASCII for a stream without an encoding
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main([*command.split(), "--help"])
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    out.seek(0)
    return out.read()


def read_help(page: str) -> Help:
    """Split a help page into usage, description and flags."""
    head, _, box = page.partition("╭")
    usage, _, text = head.strip().partition("\n")
    flags: list[Flag] = []
    for line in box.splitlines()[1:]:
        row = line.strip("│╰╯─").rstrip()
        if match := re.match(r" (-\S.*?)(?:\s{2,}(.*))?$", row):
            flags.append(Flag(match[1], match[2] or ""))
        elif row.strip():
            flags[-1] = flags[-1]._replace(text=f"{flags[-1].text} {row.strip()}".strip())
    return Help(usage.removeprefix("usage: "), text.strip(), flags)


def list_commands() -> list[str]:
    """Return all commands, those of `motion` after it."""
    below = {"motion": [f"motion {verb}" for verb in VERBS]}
    return [name for command in COMMANDS for name in (command, *below.get(command, []))]


def make_command_line() -> str:
    """Return a section for each command, with a heading for each of its flags."""
    lines = ["| command | what it does |", "|---|---|"]
    lines += [f"| [`mjtrain {name}`](#mjtrain-{name}) | {_escape(text)} |" for name, text in COMMANDS.items()]
    for name in list_commands():
        page = read_help(print_help(name))
        usage = page.usage.removeprefix("mjtrain ")
        lines += ["", f"## mjtrain {name} {{ #mjtrain-{name.replace(' ', '-')} }}", "", f"```text\nmjtrain {usage}\n```", ""]
        lines.append(_escape(page.text) if page.flags else f"```text\n{page.text}\n```")
        for flag in page.flags:
            lines += ["", *_format_flag(name, flag)]
        if name == "train":
            lines += ["", "### Rarely needed", "", "`mjtrain train TASK --help-all` lists these flags too.", ""]
            for flag in list_rare_flags():
                lines += ["", *_format_flag(name, flag)]
    return "\n".join(lines)


def list_rare_flags() -> list[Flag]:
    """Return the flags of `train` that its short help leaves out."""
    flags = []
    for kind in (config.LaunchConfig, config.RunConfig):
        texts = _describe_fields(kind)
        for field in dataclasses.fields(kind):
            if not field.metadata.get("rare"):
                continue
            text, default = texts[field.name], _format_default(field)
            if not re.search(r"\bDefault: |\bLeft out: ", text) and default not in ("None", "()", '""'):
                text = f"{text} (default: {default.strip(chr(34))})"
            name = f"--{field.name.replace('_', '-')}"
            flags.append(Flag(name + _format_value_kind(typing.get_type_hints(kind)[field.name]), text))
    return flags


def _format_value_kind(kind: Any) -> str:
    """Return the values that a flag takes as help writes them, after a space; empty for a flag without a value."""
    args = [arg for arg in typing.get_args(kind) if arg not in (types.NoneType, ...)]
    if typing.get_origin(kind) is Literal:
        return f" {{{','.join(args)}}}"
    if args:
        word = _format_value_kind(args[0])
        return f" [{word.strip()} ...]" if typing.get_origin(kind) is tuple else word
    return "" if kind is bool else f" {kind.__name__.upper()}"


def make_configuration() -> str:
    """Return a table of fields for each class of `mjtrain.config`."""
    missing = set(list_config_classes()) ^ {name for names in SECTIONS.values() for name in names}
    assert not missing, f"docs/_build/reference.py: SECTIONS differs from mjtrain.config in {sorted(missing)}"
    lines = []
    for title, names in SECTIONS.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += [*_format_class(getattr(config, name)), ""]
    return "\n".join(lines)


def make_settings() -> str:
    """Return a list of the settings' classes that are names of `mjtrain`, with links to their fields."""
    names = [name for name in list_config_classes() if name in mjtrain.__all__]
    return ", ".join(f"[`{name}`](configuration.md#{name})" for name in names)


def _format_class(kind: type[Any]) -> list[str]:
    where = "mjtrain" if kind.__name__ in mjtrain.__all__ else "mjtrain.config"
    lines = [f"### {kind.__name__} {{ #{kind.__name__} }}", "", f"`{where}.{kind.__name__}`", ""]
    lines += [_escape(docstring_parser.parse(inspect.getdoc(kind) or "").description or ""), ""]
    lines += ["| field | type | default | what it is |", "|---|---|---|---|"]
    texts, types_of = _describe_fields(kind), typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        default = _format_default(field)
        cells = (
            f"`{field.name}`",
            f"`{format_type(types_of[field.name])}`",
            f"`{default}`" if default else "required",
            _escape(texts.get(field.name, "")).replace("|", "&#124;"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _describe_fields(kind: type[Any]) -> dict[str, str]:
    bases = reversed(kind.__mro__[:-1])  # the docstring of a class has no fields of its bases
    params = [param for base in bases for param in docstring_parser.parse_from_object(base).params]
    return {param.arg_name: " ".join((param.description or "").split()) for param in params}


def format_type(kind: Any) -> str:
    """Return a type as a reader writes it: choices as their values, classes without their modules."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is None or kind is types.NoneType:
        return "None"
    if kind is ...:
        return "..."
    if isinstance(kind, typing.TypeVar):
        return format_type(kind.__bound__) if kind.__bound__ is not None else kind.__name__
    if origin is Literal:
        return " | ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in args)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(format_type(arg) for arg in args)
    if origin is Callable or origin is typing.get_origin(Callable[..., Any]):
        return f"Callable[..., {format_type(args[-1])}]" if args else "Callable"
    if origin is not None and args:
        return f"{origin.__name__}[{', '.join(format_type(arg) for arg in args)}]"
    return getattr(kind, "__name__", str(kind).replace("typing.", ""))


def _format_default(field: "dataclasses.Field[Any]") -> str:
    """Return a field's default as it is written in Python; empty if there is none."""
    if field.default is not dataclasses.MISSING:
        return _format_value(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return _format_value(field.default_factory())
    return ""


def _format_value(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = [
            f"{field.name}={_format_value(getattr(value, field.name))}"
            for field in dataclasses.fields(value)
            if _format_value(getattr(value, field.name)) != _format_default(field)
        ]
        return f"{type(value).__name__}({', '.join(changed)})"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"({', '.join(map(_format_value, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_format_value(key)}: {_format_value(item)}' for key, item in value.items())}}}"
    return getattr(value, "__name__", repr(value))


def _format_flag(command: str, flag: Flag) -> list[str]:
    name = re.findall(r"--[\w-]+", flag.names)[0]
    text, default = flag.text, None
    if match := re.fullmatch(r"(.*?)\s*\(default: ([^()]*)\)", flag.text):
        text, default = match[1], match[2]
    value = "" if default is None else f" Default: `{default}`."
    names = flag.names.replace("{None}|", "").replace("{None,", "{")  # None is what leaving the flag out means
    names = re.sub(r"\[(\S+) \[\1 \.\.\.\]\]", r"[\1 ...]", names)
    return [f"#### `{names}` {{ #{command.replace(' ', '-')}{name} }}", "", f"{_escape(text[:1].upper() + text[1:])}{value}"]


def _escape(text: str) -> str:
    """Return plain text as Markdown: flags and commands as code, and no character that has a meaning."""
    parts = re.split(r"(`[^`]*`)", text)
    for index in range(0, len(parts), 2):
        pieces = re.split(r"(?<![\w`-])(--[a-z][\w-]*(?:\.[\w…-]+)*(?:=[\w-]+)?)", parts[index])
        parts[index] = "".join(f"`{piece}`" if at % 2 else _escape_plain(piece) for at, piece in enumerate(pieces))
    return "".join(parts)


def _escape_plain(text: str) -> str:
    return re.sub(r"([*_\[\]#])", r"\\\1", text.replace("<", "&lt;").replace(">", "&gt;"))
