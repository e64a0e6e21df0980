"""mjtrain: train robot policies with reinforcement learning on MuJoCo, from a laptop CPU to many GPU nodes."""

from mjtrain.api import train
from mjtrain.config import (
    ActionTerm,
    AgentConfig,
    DistributionConfig,
    EnvConfig,
    EventTerm,
    LaunchConfig,
    ModelConfig,
    ObservationTerm,
    PpoConfig,
    RewardTerm,
    RunConfig,
    TaskConfig,
    TerminationTerm,
    TrainConfig,
    WarpConfig,
)
from mjtrain.launcher import RankFailedError, launch
from mjtrain.rank import RankContext

__all__ = [
    "ActionTerm",
    "AgentConfig",
    "DistributionConfig",
    "EnvConfig",
    "EventTerm",
    "LaunchConfig",
    "ModelConfig",
    "ObservationTerm",
    "PpoConfig",
    "RankContext",
    "RankFailedError",
    "RewardTerm",
    "RunConfig",
    "TaskConfig",
    "TerminationTerm",
    "TrainConfig",
    "WarpConfig",
    "launch",
    "train",
]
