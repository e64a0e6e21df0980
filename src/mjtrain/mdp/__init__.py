"""What tasks are made of: term functions by subject, and helpers that make terms of them.

    from mjtrain.mdp import observation, observations, reward, rewards, torch

Submodules hold the functions: observations, rewards, terminations, events, randomization, appearance,
root, velocity, gait, reach, targets, objects, tracking, and reference, which tracking reads.
Neither this package nor its submodules import torch. `torch` of this package is imported by its first use; `import
torch` works as well, and costs the help page of a task the time. `Env` and `Worlds`, which are for annotations, import
torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mjtrain.env.sampling import uniform
from mjtrain.mdp.terms import (
    command,
    controller,
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
from mjtrain.runtime.deferred_imports import torch
from mjtrain.sim import rotations

if TYPE_CHECKING:
    from mjtrain.env.env import Env
    from mjtrain.env.events import Worlds

_LAZY = {"Env": "mjtrain.env.env", "Worlds": "mjtrain.env.events"}

__all__ = [
    "Env",
    "Worlds",
    "command",
    "controller",
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
    "torch",
    "truncation",
    "uniform",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
