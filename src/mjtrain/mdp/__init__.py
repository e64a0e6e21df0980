"""What tasks are made of: term functions by subject, and helpers that make terms of them.

    from mjtrain.mdp import observation, observations, reward, rewards

Submodules hold the functions: observations, rewards, terminations, events, randomization, appearance,
root, velocity, gait, reach, targets, objects.
Importing this package does not import torch; using `Env`, `Worlds`, `uniform`, `rotations` or a submodule does.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mjtrain.mdp.terms import (
    command,
    curriculum,
    error,
    interval_event,
    observation,
    refined,
    reset_event,
    reward,
    startup_event,
    success,
    termination,
    truncation,
)

if TYPE_CHECKING:
    from mjtrain import rotations
    from mjtrain.env.env import Env
    from mjtrain.env.events import Worlds
    from mjtrain.env.sampling import uniform

_LAZY = {"Env": "mjtrain.env.env", "Worlds": "mjtrain.env.events", "uniform": "mjtrain.env.sampling"}

__all__ = [
    "Env",
    "Worlds",
    "command",
    "curriculum",
    "error",
    "interval_event",
    "observation",
    "refined",
    "reset_event",
    "reward",
    "rotations",
    "startup_event",
    "success",
    "termination",
    "truncation",
    "uniform",
]


def __getattr__(name: str) -> Any:
    if name == "rotations":
        return importlib.import_module("mjtrain.rotations")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
