"""Functions of runs that this process has trained, for those that no other process can import.

A run records the names of its functions. For functions of a script or a notebook, closures and lambdas the name is not
enough, so the process that trained the run keeps them, and can play and export it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from mjtrain.config import AnyEnvConfig
from mjtrain.config.functions import collect_functions, is_importable

_kept: dict[str, dict[str, Callable[..., Any]]] = {}
"""By `started` in params/launch.yaml, which a copy of a run has too: functions by their paths in the config."""


def keep_functions(record: Mapping[str, Any], env: AnyEnvConfig) -> None:
    """Keep the functions of a run that is about to be trained.

    Args:
        record: Content of its params/launch.yaml.
        env: What is trained.
    """
    functions = {path: func for path, func in collect_functions(env).items() if not is_importable(func)}
    if functions:
        _kept[record["started"]] = functions


def find_kept_functions(record: Mapping[str, Any]) -> Mapping[str, Callable[..., Any]]:
    """Return the kept functions of a run by their paths in the config; empty if there are none.

    Args:
        record: Content of its params/launch.yaml.
    """
    return _kept.get(str(record.get("started")), {})
