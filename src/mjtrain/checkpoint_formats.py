"""What checkpoints held in earlier versions of mjtrain, and how to read them; pure."""

from collections.abc import Callable
from typing import Any

FORMAT = 1
"""Number of the format that is written today, under the key "format"."""


def upgrade(content: dict[str, Any]) -> dict[str, Any]:
    """Turn the content of a checkpoint of any earlier format into today's.

    Args:
        content: As it was saved; not changed. Without a "format" it is of format 0.

    Raises:
        ValueError: A newer version of mjtrain wrote it; the message says so.
    """
    number = content.get("format", 0)
    if not isinstance(number, int) or not 0 <= number <= FORMAT:
        raise ValueError(f"has format {number}, and this version of mjtrain reads up to {FORMAT}; update mjtrain")
    for reader in _READERS[number:]:
        content = reader(content)
    return content


def _from_0(content: dict[str, Any]) -> dict[str, Any]:
    """Format 1 has the same content as format 0, and says which format it is."""
    return {**content, "format": 1}


_READERS: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = (_from_0,)
"""The reader at index n turns format n into format n + 1."""
