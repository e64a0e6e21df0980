"""The search space, from flags or a YAML file: which settings of `train` vary, and over which values; pure."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from mjtrain.runs.run_dir import read_given_yaml
from mjtrain.runtime.errors import RequestError, suggest
from mjtrain.tools import normalise_flag

Kind = Literal["log", "uniform", "int", "choice", "flag"]
Value = float | int | str

KINDS: tuple[Kind, ...] = get_args(Kind)
FORMS = "log LOW HIGH, uniform LOW HIGH, int LOW HIGH, choice A B …, flag"

SWITCH = ("off", "on")  # values of a flag that takes none: left out, and given

EXAMPLE = "--param agent.algorithm.learning-rate log 1e-4 1e-2"

_SHARE = 0.381966  # below it lies a value that is hardly ever whole, also between whole bounds


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One setting that is searched."""

    flags: tuple[str, ...]  # flags of `train` that all get its value, without the dashes before them
    kind: Kind  # see the table in docs/sweeps.md
    low: float = 0.0
    high: float = 0.0
    choices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in the study and in tables."""
        return ",".join(self.flags)

    @property
    def finite_values(self) -> Sequence[Value]:
        """All of its values; empty if there are infinitely many."""
        return range(int(self.low), int(self.high) + 1) if self.kind == "int" else self.choices

    @property
    def tested_values(self) -> Sequence[Value]:
        """Values that are tried before a sweep: all choices, or the bounds, and a fraction if they may be whole."""
        between = () if self.kind == "int" else (self.value_at(_SHARE),)
        return self.choices or (self.low, self.high, *between)

    def value_at(self, share: float) -> Value:
        """Return the value below which a share of its values lies, from 0 to below 1."""
        if values := self.finite_values:
            return values[int(share * len(values))]
        if self.kind == "log":
            return self.low * (self.high / self.low) ** share
        return self.low + share * (self.high - self.low)

    def to_words(self, value: Value) -> list[str]:
        """Write a value as arguments of `train`."""
        if self.kind == "flag":
            return [f"--{flag}" for flag in self.flags] if value == SWITCH[1] else []
        return [word for flag in self.flags for word in (f"--{flag}", *format_value(value).split())]

    def describe(self) -> str:
        """Write it as it is given on the command line."""
        values = () if self.kind == "flag" else map(format_value, self.choices or (self.low, self.high))
        return " ".join((self.name, self.kind, *(f'"{value}"' if " " in value else value for value in values)))


def format_value(value: Value) -> str:
    """Write a value as it stands on the command line; numbers have six digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def shorten(name: str) -> str:
    """Leave out where a setting is, such as agent.algorithm; the first of several flags stands for all."""
    return name.split(",")[0].rpartition(".")[2]


def to_words(space: Sequence[Parameter], values: dict[str, Any]) -> list[str]:
    """Write the values of a trial as arguments of `train`."""
    return [word for parameter in space for word in parameter.to_words(values[parameter.name])]


def list_corners(space: Sequence[Parameter]) -> list[dict[str, Value]]:
    """Return combinations in which all tested values occur: the lowest ones, the highest ones, further ones."""
    tested = {parameter.name: parameter.tested_values for parameter in space}
    count = max(len(values) for values in tested.values())
    return [{name: values[min(index, len(values) - 1)] for name, values in tested.items()} for index in range(count)]


def count_grid(space: Sequence[Parameter]) -> int:
    """Count all combinations."""
    for parameter in space:
        if not parameter.finite_values:
            words = f"{parameter.name} {parameter.kind} has no finite number of values"
            raise RequestError(f"--sampler grid: {words}; give choice or int")
    return math.prod(len(parameter.finite_values) for parameter in space)


def parse_space(parameters: Sequence[Sequence[str]]) -> tuple[Parameter, ...]:
    """Read a search space."""
    if not parameters:
        raise RequestError(f"--param: nothing to search; give at least one, as in {EXAMPLE}")
    space = tuple(_parse(words) for words in parameters)
    flags = [flag for parameter in space for flag in parameter.flags]
    for flag in flags:
        if flags.count(flag) > 1:
            raise RequestError(f"--param {flag}: is given twice")
    return space


def _parse(words: Sequence[str]) -> Parameter:
    text = f"--param {' '.join(words)}"
    if len(words) < 2:
        raise RequestError(f"{text}: give a flag of train, one of {', '.join(KINDS)}, and values: {EXAMPLE}")
    flags = tuple(normalise_flag(flag) for flag in words[0].split(","))
    if not all(flags):
        raise RequestError(f"{text}: a name is missing")
    kind: Kind | None = next((kind for kind in KINDS if kind == words[1]), None)
    if kind is None:
        hint = suggest(words[1], KINDS, f"give {FORMS}")
        raise RequestError(f"{text}: unknown kind {words[1]}{hint}")
    values = words[2:]
    if kind == "flag":
        if values:
            raise RequestError(f"{text}: flag takes no values; the trial gives the flag or leaves it out")
        return Parameter(flags=flags, kind=kind, choices=SWITCH)
    if kind == "choice":
        choices = tuple(" ".join(value.split()) for value in values)
        if len(choices) < 2 or len(set(choices)) < len(choices) or not all(choices):
            raise RequestError(f"{text}: give two different values or more")
        return Parameter(flags=flags, kind=kind, choices=choices)
    try:
        low, high = (int(value) if kind == "int" else float(value) for value in values)
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RequestError(f"{text}: give two {'whole ' if kind == 'int' else ''}numbers, as in {kind} LOW HIGH")
    if low >= high:
        swapped = f"; give {values[1]} {values[0]}" if low > high else ""
        raise RequestError(f"{text}: the lower bound comes first, and both differ{swapped}")
    if kind == "log" and low <= 0:
        raise RequestError(f"{text}: a logarithm needs bounds above 0; give uniform {values[0]} {values[1]}")
    return Parameter(flags=flags, kind=kind, low=low, high=high)


def read_space_file(path: Path) -> list[list[str]]:
    """Read a mapping from flags to what --param takes after them, a text or a list; return the words of each."""
    content = read_given_yaml(path, f"--space {path}")
    if not isinstance(content, dict):
        raise RequestError(f"--space {path}: give lines such as agent.algorithm.learning-rate: log 1e-4 1e-2")
    return [[str(name), *_split(path, name, value)] for name, value in content.items()]


def _split(path: Path, name: Any, value: Any) -> list[str]:
    if isinstance(value, list):
        return [" ".join(map(str, item)) if isinstance(item, list) else str(item) for item in value]
    try:
        return shlex.split(str(value))
    except ValueError as error:
        raise RequestError(f"--space {path}: {name}: {value}: {error}") from error
