"""Errors that commands print as one line, and numbers and values as messages write them."""

import difflib
import errno
import importlib.util
from collections.abc import Iterable, Sequence
from typing import Any

INJECTED = "after injected fault "
"""In the cause of a failure that followed upon --inject-fault, what comes before the fault."""

_MAX_LINE = 2000

SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
"""Errors that may pass: the process or the machine is out of descriptors or memory at this moment."""


class RequestError(ValueError):
    """What was asked for cannot be done; the message names the flag or field, the value, and what would be right.

    Commands print the message as one line, and each of its notes as one more, and end with status 2. So do they
    with an OSError about a path of theirs that may not be opened or is too long. Every other exception is a failure
    and keeps its traceback.
    """

    @classmethod
    def of(cls, problems: Sequence[str]) -> "RequestError":
        """Make an error of several problems: the first is its message, and the others are its notes."""
        error = cls(problems[0])
        for problem in problems[1:]:
            error.add_note(problem)
        return error


def refuse(problems: Iterable[str]) -> None:
    """Raise a `RequestError` if there are problems."""
    if found := list(problems):
        raise RequestError.of(found)


class OutsideError(RuntimeError):
    """Something that this process depends on fails, and may work later; the message is one line that says all.

    Commands print the line without a traceback, and end with status 1.
    """


class StoppedError(SystemExit):
    """A signal has ended this process; `code` is 128 plus its number.

    It may be raised in a function of the user, which is not its cause.
    """


def message_of(error: BaseException) -> str:
    """Return the message of an exception, even of one whose `__str__` raises."""
    try:
        return str(error)
    except Exception as second:
        return f"(its __str__ raises {type(second).__name__})"


def first_line_of(error: BaseException) -> str:
    """Return the first line of an exception's message, without its middle if it is very long; empty without one."""
    line = next(iter(message_of(error).strip().splitlines()), "")
    left_out = len(line) - _MAX_LINE
    half = _MAX_LINE // 2
    return line if left_out <= 0 else f"{line[:half]} [{left_out} characters left out] {line[-half:]}"


def summarise(error: BaseException) -> str:
    """Name an exception and the first line of its message."""
    text = first_line_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def suggest(word: str, known: Iterable[str], otherwise: str | None = None, *, cutoff: float = 0.6) -> str:
    """Return the end of a message about an unknown word: a semicolon, and what may have been meant.

    Args:
        otherwise: What to say if nothing is similar. Default: all that could have been given. Empty: nothing at all.
        cutoff: Least similarity of what is suggested, from 0 to 1, see `difflib.get_close_matches`.
    """
    names = {name.lower(): name for name in known}
    close = [names[name] for name in difflib.get_close_matches(word.lower(), names, n=3, cutoff=cutoff)]
    if close:
        return f"; did you mean {' or '.join(close)}?"
    said = f"there are {', '.join(names.values())}" if otherwise is None else otherwise
    return f"; {said}" if said else ""


def require(what: str, extra: str, *modules: str) -> None:
    """Raise a RequestError unless modules are installed, without importing them."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise RequestError(f"{what} needs {' and '.join(missing)}; pip install 'mjtrain[{extra}]'")


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number and its noun: 1 iteration, 2,000 iterations. Without a plural, an s is added."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def spaced(value: Any) -> str:
    """Write a value as a flag takes it: the items of a tuple or list with spaces between them."""
    items = value if isinstance(value, tuple | list) else [value]
    return " ".join(f"{item:.15g}" if isinstance(item, float) else str(item) for item in items)
