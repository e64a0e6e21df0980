"""Every setting of mjtrain as frozen, keyword-only dataclasses; standard library only."""

from mjtrain.config.agent import AgentConfig, DistributionConfig, ModelConfig, PpoConfig
from mjtrain.config.env import (
    ActionTerm,
    CommandTerm,
    CurriculumTerm,
    EnvConfig,
    ErrorTerm,
    EventTerm,
    NanGuardConfig,
    ObservationTerm,
    RewardTerm,
    TerminationTerm,
    TerrainConfig,
    WarpConfig,
)
from mjtrain.config.launch import Backend, GpuIds, LaunchConfig
from mjtrain.config.plain import from_plain, to_plain
from mjtrain.config.play import PlayConfig, PolicyName, ViewerName
from mjtrain.config.train import EngineName, LoggerName, RunConfig, RunToResume, TaskConfig, TrainConfig, WandbMode

__all__ = [
    "ActionTerm",
    "AgentConfig",
    "Backend",
    "CommandTerm",
    "CurriculumTerm",
    "DistributionConfig",
    "EngineName",
    "EnvConfig",
    "ErrorTerm",
    "EventTerm",
    "GpuIds",
    "LaunchConfig",
    "LoggerName",
    "ModelConfig",
    "NanGuardConfig",
    "ObservationTerm",
    "PlayConfig",
    "PolicyName",
    "PpoConfig",
    "RewardTerm",
    "RunConfig",
    "RunToResume",
    "TaskConfig",
    "TerminationTerm",
    "TerrainConfig",
    "TrainConfig",
    "ViewerName",
    "WandbMode",
    "WarpConfig",
    "from_plain",
    "to_plain",
]
