"""mjtrain: train robot policies with reinforcement learning on MuJoCo, from a laptop CPU to many GPU nodes."""

import os

# Threads of torch that wait for each other sleep. By default they spin, which holds up whatever they wait for on a
# machine with other work. OpenMP reads this when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from mjtrain.api import train
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
    "RunConfig",
    "TaskConfig",
    "TerminationTerm",
    "TerrainConfig",
    "TrainConfig",
    "WarpConfig",
    "beat",
    "launch",
    "stop_requested",
    "train",
]
