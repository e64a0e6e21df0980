"""mjtrain: train robot policies with reinforcement learning on MuJoCo, from a laptop CPU to many GPU nodes."""

import os

# Threads of torch that wait for each other sleep. By default they spin, which holds up whatever they wait for on a
# machine with other work. OpenMP reads this when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from mjtrain.api import train
from mjtrain.config import (
    ActionTerm,
    ActuatorConfig,
    AgentConfig,
    CameraConfig,
    CommandTerm,
    CurriculumTerm,
    DistributionConfig,
    EnvConfig,
    ErrorTerm,
    EventTerm,
    GeomConfig,
    KeyframeConfig,
    LaunchConfig,
    LightConfig,
    ModelConfig,
    NamesConfig,
    NanGuardConfig,
    ObservationTerm,
    OptionConfig,
    PpoConfig,
    RewardTerm,
    RobotConfig,
    RunConfig,
    SensorConfig,
    SiteConfig,
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
    "ActuatorConfig",
    "AgentConfig",
    "CameraConfig",
    "CommandTerm",
    "CurriculumTerm",
    "DistributionConfig",
    "EnvConfig",
    "ErrorTerm",
    "EventTerm",
    "GeomConfig",
    "KeyframeConfig",
    "LaunchConfig",
    "LightConfig",
    "ModelConfig",
    "NamesConfig",
    "NanGuardConfig",
    "ObservationTerm",
    "OptionConfig",
    "PpoConfig",
    "RankContext",
    "RankFailedError",
    "RewardTerm",
    "RobotConfig",
    "RunConfig",
    "SensorConfig",
    "SiteConfig",
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
