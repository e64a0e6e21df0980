"""Names in a robot's config: found in the robot, or refused in one line that says what there is."""

import difflib
import re
from collections.abc import Iterable, Sequence

from mjtrain.errors import RequestError


def choose(flag: str, name: str, kind: str, there: Iterable[str]) -> str:
    """Return a name if it is there.

    Args:
        flag: Where the name stands, below --env.robot.
        name: The name.
        kind: What it names, for the message.
        there: Names that there are.

    Raises:
        RequestError: It is not there; the message has similar names and all that there are.
    """
    names = [item for item in there if item]
    if name in names:
        return name
    raise refuse(flag, name, f"no {kind} has this name", names)


def match(flag: str, patterns: Sequence[str], kind: str, there: Iterable[str]) -> list[str]:
    """Return the names that regular expressions match whole, in the order of `there`.

    Raises:
        RequestError: An expression matches nothing or is no regular expression, or a string stands for the tuple.
    """
    if isinstance(patterns, str):
        raise RequestError(
            f"--env.robot.{flag} {patterns!r}: is a string; give a tuple of expressions, ({patterns!r},)"
        )
    names = [item for item in there if item]
    matched = {name for pattern in patterns for name in match_one(flag, pattern, kind, names)}
    return [name for name in names if name in matched]


def match_one(flag: str, pattern: str, kind: str, names: Sequence[str]) -> list[str]:
    """Return the names that one regular expression matches whole; raises as `match` does."""
    try:
        hits = [name for name in names if re.fullmatch(pattern, name)]
    except re.error as error:
        raise RequestError(f"--env.robot.{flag} {pattern}: is no regular expression ({error})") from error
    if not hits:
        raise refuse(flag, pattern, f"matches no {kind}", names)
    return hits


def refuse(flag: str, value: str, why: str, there: Iterable[str]) -> RequestError:
    """Make the error for a wrong name: the flag, the value, why, similar names and all that there are."""
    names = list(there)
    close = difflib.get_close_matches(value, names, n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return RequestError(f"--env.robot.{flag} {value}: {why}{hint}; there is {', '.join(names) or 'none'}")
