"""Numbers as messages write them."""


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number and its noun: 1 iteration, 2,000 iterations. Without a plural, an s is added."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
