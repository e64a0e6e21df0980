"""What a learning library is connected with: one list of names for those who write a learner.

    from mjtrain.learning import Algorithm, Collectives, Library, TrainingLoop

A package registers a `Library` under the entry point `mjtrain.learners`. Its learner is a `TrainingLoop` around an
`Algorithm`, so that rollouts, metrics, checkpoints, stop requests and checks are the same for every library. See
docs/learners.md.
This package imports no torch; the first use of a name does, where the name needs it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mjtrain.config import AgentConfig, LearnerConfig, ModelConfig, PpoConfig, TrainConfig, merge_settings
    from mjtrain.env.base import TaskEnv
    from mjtrain.learning.algorithm import Algorithm, Observations
    from mjtrain.learning.collectives import Collectives, normalise
    from mjtrain.learning.divergence import RanksDriftedError
    from mjtrain.learning.learner import IterationResult, Policy
    from mjtrain.learning.library import Library
    from mjtrain.learning.loop import Learner, TrainingLoop
    from mjtrain.learning.persistence import find_other_moment
    from mjtrain.runs.checkpoint import CheckpointError
    from mjtrain.runtime.errors import RequestError
    from mjtrain.runtime.rank import RankContext

__all__ = [
    "AgentConfig",
    "Algorithm",
    "CheckpointError",
    "Collectives",
    "IterationResult",
    "Learner",
    "LearnerConfig",
    "Library",
    "ModelConfig",
    "Observations",
    "Policy",
    "PpoConfig",
    "RankContext",
    "RanksDriftedError",
    "RequestError",
    "TaskEnv",
    "TrainConfig",
    "TrainingLoop",
    "find_other_moment",
    "merge_settings",
    "normalise",
]

_MODULES = {
    "Algorithm": "mjtrain.learning.algorithm",
    "CheckpointError": "mjtrain.runs.checkpoint",
    "Collectives": "mjtrain.learning.collectives",
    "IterationResult": "mjtrain.learning.learner",
    "Learner": "mjtrain.learning.loop",
    "Library": "mjtrain.learning.library",
    "Observations": "mjtrain.learning.algorithm",
    "Policy": "mjtrain.learning.learner",
    "RankContext": "mjtrain.runtime.rank",
    "RanksDriftedError": "mjtrain.learning.divergence",
    "RequestError": "mjtrain.runtime.errors",
    "TaskEnv": "mjtrain.env.base",
    "TrainingLoop": "mjtrain.learning.loop",
    "find_other_moment": "mjtrain.learning.persistence",
    "normalise": "mjtrain.learning.collectives",
}
"""Where a name is defined; those that are not here are of `mjtrain.config`."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(_MODULES.get(name, "mjtrain.config")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
