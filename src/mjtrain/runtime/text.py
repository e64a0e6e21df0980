"""Numbers and values as messages write them."""

from typing import Any


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number and its noun: 1 iteration, 2,000 iterations. Without a plural, an s is added."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def spaced(value: Any) -> str:
    """Write a value as a flag takes it: the items of a tuple or list with spaces between them."""
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
