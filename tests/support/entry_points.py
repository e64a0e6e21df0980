"""Entry points, read again only where something was installed: a command asks for them six times.

With some hundred packages installed, each answer takes 20 ms.
"""

import importlib.metadata
import sys
from functools import cache
from importlib.metadata import EntryPoints
from pathlib import Path

from mjtrain.env import catalog
from mjtrain.learning import registry
from mjtrain.runs import trust


def keep_entry_points() -> None:
    """Keep what mjtrain reads for as long as the folders in which packages are found stay as they are."""
    for module in (catalog, registry, trust):
        assert module.__dict__["entry_points"] in (importlib.metadata.entry_points, _find)
        module.__dict__["entry_points"] = _find


def _find(*, group: str) -> EntryPoints:
    return _read(group, tuple((place, _changed_ns(place)) for place in sys.path))


@cache
def _read(group: str, _: tuple[tuple[str, int], ...]) -> EntryPoints:
    return importlib.metadata.entry_points(group=group)


def _changed_ns(place: str) -> int:
    try:
        return Path(place).stat().st_mtime_ns
    except OSError:
        return 0
