"""Every setting of mjtrain as frozen, keyword-only dataclasses; standard library only."""

from mjtrain.config.agent import AgentConfig, DistributionConfig, ModelConfig, PpoConfig
from mjtrain.config.env import (
    ActionTerm,
    EnvConfig,
    EventTerm,
    ObservationTerm,
    RewardTerm,
    TerminationTerm,
    WarpConfig,
)
from mjtrain.config.launch import Backend, GpuIds, LaunchConfig
from mjtrain.config.plain import to_plain
from mjtrain.config.train import EngineName, LoggerName, RunConfig, TaskConfig, TrainConfig

__all__ = [
    "ActionTerm",
    "AgentConfig",
    "Backend",
    "DistributionConfig",
    "EngineName",
    "EnvConfig",
    "EventTerm",
    "GpuIds",
    "LaunchConfig",
    "LoggerName",
    "ModelConfig",
    "ObservationTerm",
    "PpoConfig",
    "RewardTerm",
    "RunConfig",
    "TaskConfig",
    "TerminationTerm",
    "TrainConfig",
    "WarpConfig",
    "to_plain",
]
