"""What a number or a name may be beyond its type, declared with `typing.Annotated` at a field or a parameter.

    tolerance: Annotated[float, MORE_THAN_0]
    sensor: Annotated[str, LINEAR_VELOCITY]

`find_type_problems` compares values with their types and these limits before anything starts. The dry step compares
names of sensors with the robot. Functions of a task may declare theirs in the same way.
"""

import dataclasses
import math
import numbers
import operator
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal

_PLAIN: dict[Any, str] = {str: "a string", int: "a whole number", float: "a number", bool: "True or False"}
_read_kinds = cache(partial(typing.get_type_hints, include_extras=True))


@dataclass(frozen=True, kw_only=True)
class Range:
    """Which finite numbers are allowed; of a tuple, each must be."""

    least: float = -math.inf
    """Smallest number."""

    most: float = math.inf
    """Largest number."""

    above: float = -math.inf
    """Number that it must be more than."""

    below: float = math.inf
    """Number that it must be less than."""

    nonzero: bool = False
    """Whether zero is left out."""

    ordered: bool = False
    """Whether the first number of a pair may not be more than the second."""

    def find_problem(self, value: Any) -> str | None:
        """Return what is wrong with a number or a tuple of numbers, to follow its name; None if nothing is."""
        if value is None:
            return None
        numbers: tuple[float, ...] = tuple(value) if isinstance(value, tuple | list) else (value,)
        shown = " ".join(map(_show_number, numbers))
        if not all(self._has(number) for number in numbers):
            each = "each " if len(numbers) > 1 else ""
            return f"{shown}: {each}must be {' and '.join(self._words(all(map(math.isfinite, numbers))))}"
        return Ordered().find_problem((numbers[0], numbers[-1])) if self.ordered else None

    def _has(self, number: float) -> bool:
        inside = self.least <= number <= self.most and self.above < number < self.below
        return inside and math.isfinite(number) and not (self.nonzero and number == 0)

    def _words(self, are_finite: bool) -> Iterator[str]:
        if self.least > -math.inf:
            yield f"at least {_show_number(self.least, 6)}"
        if self.above > -math.inf:
            yield f"more than {_show_number(self.above, 6)}"
        if self.most < math.inf:
            yield f"at most {_show_number(self.most, 6)}"
        if self.below < math.inf:
            yield f"less than {_show_number(self.below, 6)}"
        if self.nonzero:
            yield "other than 0"
        if not are_finite:
            yield "finite"


@dataclass(frozen=True, kw_only=True)
class Direction:
    """A vector or a quaternion that is not zero; its length does not matter."""

    def find_problem(self, value: tuple[float, ...] | None) -> str | None:
        """Return what is wrong with it, to follow its name; None if nothing is."""
        if value is None or (all(map(math.isfinite, value)) and any(value)):
            return None
        return f"{' '.join(f'{number:g}' for number in value)}: must be finite, and not zero"


@dataclass(frozen=True, kw_only=True)
class Ordered:
    """A pair whose first number is not more than the second; either may be infinite."""

    def find_problem(self, value: tuple[float, float] | None) -> str | None:
        """Return what is wrong with it, to follow its name; None if nothing is."""
        if value is None or value[0] <= value[1]:
            return None
        low, high = value
        what = "the first is more than the second; give" if low > high else "give two numbers,"  # NaN
        return f"{low:.15g} {high:.15g}: {what} the lower bound first"


@dataclass(frozen=True, kw_only=True)
class Reads:
    """What the named sensor must measure."""

    what: str
    """In words, for the message."""

    types: tuple[str, ...]
    """Names of MJCF elements that measure it in the world's frame, or in that of the body that they are on."""

    relative_types: tuple[str, ...] = ()
    """Names of those that measure it in the frame of a reference, which they must then have."""


MORE_THAN_0 = Range(above=0)
AT_LEAST_0 = Range(least=0)
AT_LEAST_1 = Range(least=1)
MOST_INT = 2**31 - 1
"""Largest whole number of MuJoCo and of the engines."""

COUNT = Range(least=0, most=MOST_INT)
COUNT_FROM_1 = Range(least=1, most=MOST_INT)
INT = Range(least=-MOST_INT - 1, most=MOST_INT)
FRACTION = Range(least=0, most=1)
NONZERO = Range(nonzero=True)
FINITE = Range()
ANGLE = Range(above=0, most=math.pi)
"""Of a tilt, in rad."""

MOST_S = 1e9
"""Longest time, in s; env steps of more do not fit into a number of 64 bits."""

TIME = Range(least=0, most=MOST_S)
DURATION = Range(above=0, most=MOST_S)

Positive = Annotated[float, MORE_THAN_0]
AtLeast0 = Annotated[float, AT_LEAST_0]
Fraction = Annotated[float, FRACTION]
Time = Annotated[float, TIME]
Duration = Annotated[float, DURATION]
ClipLength = Annotated[float, Range(above=0, most=86_400)]
"""Of a video, in s; its frames are kept in memory until it is drawn."""

Offsets = Annotated[tuple[float, float], FINITE]
"""Bounds in any order."""

Bounds = Annotated[tuple[float, float], Range(ordered=True)]
"""The lower and the upper bound of a uniform draw."""

Angles = Annotated[tuple[float, float], Range(ordered=True, least=-2 * math.pi, most=2 * math.pi)]
"""The same of a direction, in rad: more than a turn is a number in degrees."""

Factors = Annotated[tuple[float, float], Range(ordered=True, above=0)]
"""The same of a factor of something that is never zero, such as a mass."""

Shares = Annotated[tuple[float, float], Range(ordered=True, least=0)]
"""The same of what may be zero but not negative, such as a factor of damping or a time."""

Times = Annotated[tuple[float, float], Range(ordered=True, least=0, most=MOST_S)]
"""The same of a time, in s."""

LINEAR_VELOCITY = Reads(
    what="a linear velocity in the frame of the body", types=("velocimeter",), relative_types=("framelinvel",)
)
ANGULAR_VELOCITY = Reads(
    what="an angular velocity in the frame of the body", types=("gyro",), relative_types=("frameangvel",)
)
UP = Reads(what="a z axis", types=("framezaxis",), relative_types=("framezaxis",))
POSITION = Reads(what="a position in the world's frame", types=("framepos", "subtreecom"))
ORIENTATION = Reads(what="an orientation", types=("framequat",), relative_types=("framequat",))
VELOCITY_IN_WORLD = Reads(what="a linear velocity in the world's frame", types=("framelinvel", "subtreelinvel"))
EFFORT = Reads(what="a force or torque of an actuator", types=("actuatorfrc", "jointactuatorfrc"))
TOUCH = Reads(what="a normal force", types=("touch",))

Velocimeter = Annotated[str, LINEAR_VELOCITY]
Gyro = Annotated[str, ANGULAR_VELOCITY]
PositionSensor = Annotated[str, POSITION]
PositionSensors = Annotated[tuple[str, ...], POSITION]
OrientationSensor = Annotated[str, ORIENTATION]
OrientationSensorOrNone = Annotated[str | None, ORIENTATION]


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
            for problem in (
                *find_type_problems(arguments[0], key, f"{name} {key}", limits=limits),
                *find_type_problems(arguments[1], item, f"{name}.{key}", limits=limits),
            )
        ]
    if origin is tuple:
        return _check_tuple(arguments, value, name, limits=limits)
    if origin is Callable or kind is Callable:
        return []  # the check of terms says more
    return [] if _is_plain(kind, value) else [f"{name}: is {show(value)}; give {_PLAIN.get(kind, kind)}"]


def find_option_problems(options: Any) -> list[str]:
    """Compare the fields of a config whose fields are flags, such as `RunConfig`, with their types and limits."""
    return _check_fields(type(options), options, "--")


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, of Python or of another library."""
    try:
        operator.index(value)
    except TypeError:  # arrays of several numbers have `__index__` too
        return False
    return True


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


def _show_number(number: float, digits: int = 15) -> str:
    return str(number) if isinstance(number, int) else f"{number:.{digits}g}"


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
    kinds = _read_kinds(kind)
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
