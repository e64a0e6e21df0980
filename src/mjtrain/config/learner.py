"""Which learning library trains, and what it is told in its own words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEFAULT_LEARNER = "rsl_rl"
"""Learner of a run that names none."""


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """The learner of a run, as it is recorded with the run."""

    name: str = DEFAULT_LEARNER
    """Name under which the learner is registered."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Content of --learner-config: settings of the library by its own names, merged over what follows from the agent's
    config."""


def merge_settings(translated: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a library with others put over them; nested mappings are merged, other values replaced."""
    merged = dict(translated)
    for name, value in settings.items():
        below = merged.get(name)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[name] = merge_settings(below, value) if both else value  # pyright: ignore[reportArgumentType]
    return merged
