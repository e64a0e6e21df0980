"""What installed packages register with mjtrain."""

import importlib.metadata
import sys
from functools import lru_cache
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Any


def find_entry_points(group: str) -> EntryPoints:
    """Return what is registered under a group; packages that are installed later are found."""
    return _read(tuple((place, _changed_ns(place)) for place in sys.path)).select(group=group)


@lru_cache(maxsize=1)
def _read(_: tuple[tuple[str, int], ...]) -> Any:
    """Read all that is registered. A command asks six times, and an answer takes 20 ms with a hundred packages."""
    return importlib.metadata.entry_points()  # of a type that changed with Python 3.12


def _changed_ns(place: str) -> int:
    try:
        return Path(place).stat().st_mtime_ns
    except OSError:
        return 0
