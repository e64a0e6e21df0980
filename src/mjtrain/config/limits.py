"""What a number or a name may be beyond its type, declared with `typing.Annotated` at a field or a parameter.

    tolerance: Annotated[float, MORE_THAN_0]
    sensor: Annotated[str, LINEAR_VELOCITY]

`type_check` compares numbers with it before anything starts, and the dry step compares names of sensors with the robot.
Functions of a task may declare theirs in the same way.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any


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
        shown = " ".join(f"{number:g}" for number in numbers)
        if not all(self._has(number) for number in numbers):
            each = "each " if len(numbers) > 1 else ""
            return f"{shown}: {each}must be {' and '.join(self._words(all(map(math.isfinite, numbers))))}"
        return Ordered().find_problem((numbers[0], numbers[-1])) if self.ordered else None

    def _has(self, number: float) -> bool:
        inside = self.least <= number <= self.most and self.above < number < self.below
        return inside and math.isfinite(number) and not (self.nonzero and number == 0)

    def _words(self, are_finite: bool) -> Iterator[str]:
        if self.least > -math.inf:
            yield f"at least {self.least:g}"
        if self.above > -math.inf:
            yield f"more than {self.above:g}"
        if self.most < math.inf:
            yield f"at most {self.most:g}"
        if self.below < math.inf:
            yield f"less than {self.below:g}"
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
        return f"{low:g} {high:g}: {what} the lower bound first"


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
FRACTION = Range(least=0, most=1)
NONZERO = Range(nonzero=True)
FINITE = Range()
ANGLE = Range(above=0, most=math.pi)
"""Of a tilt, in rad."""

Bounds = Annotated[tuple[float, float], Range(ordered=True)]
"""The lower and the upper bound of a uniform draw."""

Angles = Annotated[tuple[float, float], Range(ordered=True, least=-2 * math.pi, most=2 * math.pi)]
"""The same of a direction, in rad: more than a turn is a number in degrees."""

Factors = Annotated[tuple[float, float], Range(ordered=True, above=0)]
"""The same of a factor of something that is never zero, such as a mass."""

Shares = Annotated[tuple[float, float], Range(ordered=True, least=0)]
"""The same of what may be zero but not negative, such as a factor of damping or a time."""

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
