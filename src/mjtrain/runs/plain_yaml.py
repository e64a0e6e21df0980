"""YAML of files that anyone may have written: plain values only, of bounded size, depth and number."""

from pathlib import Path
from typing import Any

import yaml

from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.files import read_regular

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may have been built without libyaml
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

MAX_BYTES = 8 << 20
MAX_DEPTH = 100
"""Of nested values. libyaml crashes with some ten thousand."""

MAX_VALUES = 200_000
"""With those that aliases repeat: a few hundred bytes of aliases can stand for more than fits in memory."""


def parse_yaml(text: str | bytes) -> Any:
    """Parse a text; raises a yaml.YAMLError if it is not valid, or too large."""
    if len(text) > MAX_BYTES:
        raise yaml.YAMLError(f"it has more than {MAX_BYTES >> 20} MiB")
    try:
        _check_size(text)
        return yaml.load(text, Loader=_LOADER)
    except (ValueError, OverflowError, TypeError) as error:  # a date such as 2026-13-45, or bytes that are no UTF-8
        raise yaml.YAMLError(str(error)) from error


def read_yaml(path: Path) -> Any:
    """Parse a regular file, as `parse_yaml` does."""
    return parse_yaml(read_regular(path, MAX_BYTES + 1))


def read_given_yaml(path: Path, flag: str) -> Any:
    """Parse a file that a flag of a command names; a pipe will do. `flag` is the flag with its value, for errors."""
    try:
        return parse_yaml(path.read_bytes())
    except OSError as error:
        raise RequestError(f"{flag}: cannot be read ({error.strerror})") from error
    except yaml.YAMLError as error:
        raise RequestError(f"{flag}: is not valid YAML ({' '.join(str(error).split())})") from error


def to_yaml(content: Any) -> str:
    """Write plain values, mappings in their order."""
    return yaml.dump(content, Dumper=_DUMPER, sort_keys=False)


def _check_size(text: str | bytes) -> None:
    sizes: dict[str, int] = {}
    open_values: list[tuple[str | None, int]] = []
    """Anchor of each list and mapping around the current place, and how many values came before it."""
    count = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_values):
                raise yaml.YAMLError(f"the alias {event.anchor} contains itself")
            count += sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_values.append((event.anchor, count))
            count += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_values.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        if len(open_values) > MAX_DEPTH:
            raise yaml.YAMLError(f"values are nested deeper than {MAX_DEPTH}")
        if count > MAX_VALUES:
            raise yaml.YAMLError(f"it stands for more than {MAX_VALUES:,} values")
