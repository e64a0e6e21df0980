"""Every setting of mjtrain as frozen, keyword-only dataclasses; standard library only."""

from mjtrain.config.agent import AgentConfig, AuxiliaryConfig, DistillationConfig, PpoConfig, SymmetryConfig
from mjtrain.config.camera import CameraConfig, StreamName
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
    SuccessTerm,
    TerminationTerm,
    TerrainConfig,
    WarpConfig,
)
from mjtrain.config.foreign import AnyEnvConfig, ForeignConfig, GymnasiumConfig, MjlabConfig, VecEnvConfig
from mjtrain.config.launch import Backend, GpuIds, LaunchConfig
from mjtrain.config.learner import DEFAULT_LEARNER, LearnerConfig, merge_settings
from mjtrain.config.networks import CnnConfig, DistributionConfig, ModelConfig
from mjtrain.config.plain import from_plain, to_plain
from mjtrain.config.play import PlayConfig, PolicyName, ViewerName
from mjtrain.config.robot import RobotConfig
from mjtrain.config.robot_parts import (
    ActuatorConfig,
    GeomConfig,
    KeyframeConfig,
    LightConfig,
    MirrorConfig,
    MountedCameraConfig,
    NamesConfig,
    OptionConfig,
    SensorConfig,
    SiteConfig,
)
from mjtrain.config.train import EngineName, LoggerName, RunConfig, RunToResume, TaskConfig, TrainConfig, WandbMode

__all__ = [
    "DEFAULT_LEARNER",
    "ActionTerm",
    "ActuatorConfig",
    "AgentConfig",
    "AnyEnvConfig",
    "AuxiliaryConfig",
    "Backend",
    "CameraConfig",
    "CnnConfig",
    "CommandTerm",
    "CurriculumTerm",
    "DistillationConfig",
    "DistributionConfig",
    "EngineName",
    "EnvConfig",
    "ErrorTerm",
    "EventTerm",
    "ForeignConfig",
    "GeomConfig",
    "GpuIds",
    "GymnasiumConfig",
    "KeyframeConfig",
    "LaunchConfig",
    "LearnerConfig",
    "LightConfig",
    "LoggerName",
    "MirrorConfig",
    "MjlabConfig",
    "ModelConfig",
    "MountedCameraConfig",
    "NamesConfig",
    "NanGuardConfig",
    "ObservationTerm",
    "OptionConfig",
    "PlayConfig",
    "PolicyName",
    "PpoConfig",
    "RewardTerm",
    "RobotConfig",
    "RunConfig",
    "RunToResume",
    "SensorConfig",
    "SiteConfig",
    "StreamName",
    "SuccessTerm",
    "SymmetryConfig",
    "TaskConfig",
    "TerminationTerm",
    "TerrainConfig",
    "TrainConfig",
    "VecEnvConfig",
    "ViewerName",
    "WandbMode",
    "WarpConfig",
    "from_plain",
    "merge_settings",
    "to_plain",
]
