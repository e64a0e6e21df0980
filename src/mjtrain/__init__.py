"""mjtrain: train robot policies with reinforcement learning on MuJoCo, from a laptop CPU to many GPU nodes."""

from typing import TYPE_CHECKING, Any

from mjtrain.api import export, load_policy, make_env, play, train
from mjtrain.config import (
    ActionTerm,
    AgentConfig,
    CommandTerm,
    CurriculumTerm,
    DistributionConfig,
    EnvConfig,
    ErrorTerm,
    EventTerm,
    LaunchConfig,
    ModelConfig,
    NanGuardConfig,
    ObservationTerm,
    PpoConfig,
    RewardTerm,
    RunConfig,
    TaskConfig,
    TerminationTerm,
    TerrainConfig,
    TrainConfig,
    WarpConfig,
)
from mjtrain.heartbeat import beat, stop_requested
from mjtrain.launcher import RankFailedError, launch
from mjtrain.rank import RankContext

if TYPE_CHECKING:
    from mjtrain.runs.run import Run

__all__ = [
    "ActionTerm",
    "AgentConfig",
    "CommandTerm",
    "CurriculumTerm",
    "DistributionConfig",
    "EnvConfig",
    "ErrorTerm",
    "EventTerm",
    "LaunchConfig",
    "ModelConfig",
    "NanGuardConfig",
    "ObservationTerm",
    "PpoConfig",
    "RankContext",
    "RankFailedError",
    "RewardTerm",
    "Run",
    "RunConfig",
    "TaskConfig",
    "TerminationTerm",
    "TerrainConfig",
    "TrainConfig",
    "WarpConfig",
    "beat",
    "export",
    "launch",
    "load_policy",
    "make_env",
    "play",
    "stop_requested",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import what needs numpy when it is used: `import mjtrain` is part of every command."""
    if name == "Run":
        from mjtrain.runs.run import Run

        return Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
