"""A search space in a YAML file."""

import shlex
from pathlib import Path
from typing import Any

import yaml

from mjtrain.errors import RequestError


def read_space_file(path: Path) -> list[list[str]]:
    """Read a mapping from the names of flags to what --param takes after them, as a text or as a list.

    Returns:
        The words of each parameter.

    Raises:
        RequestError: It cannot be read, or holds something else.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise RequestError(f"--space {path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RequestError(f"--space {path}: is no YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise RequestError(f"--space {path}: give lines such as agent.algorithm.learning-rate: log 1e-4 1e-2")
    return [[str(name), *_split(path, name, value)] for name, value in content.items()]


def _split(path: Path, name: Any, value: Any) -> list[str]:
    if isinstance(value, list):
        return [" ".join(map(str, item)) if isinstance(item, list) else str(item) for item in value]
    try:
        return shlex.split(str(value))
    except ValueError as error:
        raise RequestError(f"--space {path}: {name}: {value}: {error}") from error
