"""mjtrain: train robot policies with reinforcement learning on MuJoCo, from a laptop CPU to many GPU nodes."""

import os
from typing import TYPE_CHECKING, Any

if os.getpid() == 1:  # before the imports that take seconds
    from mjtrain.runtime.processes import obey_signals_as_process_1

    obey_signals_as_process_1()

# Threads of torch that wait for each other sleep. By default they spin, which holds up whatever they wait for on a
# machine with other work. OpenMP reads this when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from mjtrain.api import export, load_policy, make_env, make_vec, play, train
from mjtrain.config import (
    ActionTerm,
    ActuatorConfig,
    AgentConfig,
    AuxiliaryConfig,
    CameraConfig,
    CnnConfig,
    CommandTerm,
    ControllerTerm,
    CurriculumTerm,
    DaggerConfig,
    DistillationConfig,
    DistributionConfig,
    EnvConfig,
    ErrorTerm,
    EventTerm,
    GeomConfig,
    GymnasiumConfig,
    KeyframeConfig,
    LaunchConfig,
    LightConfig,
    MirrorConfig,
    MjlabConfig,
    ModelConfig,
    MountedCameraConfig,
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
    SuccessTerm,
    SymmetryConfig,
    TaskConfig,
    TerminationTerm,
    TerrainConfig,
    TrainConfig,
    VecEnvConfig,
    WarmStartConfig,
    WarpConfig,
)
from mjtrain.launcher import RankFailedError, launch
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.heartbeat import beat, stop_requested
from mjtrain.runtime.rank import RankContext

if TYPE_CHECKING:
    from mjtrain.runs.run import Run

__all__ = [
    "ActionTerm",
    "ActuatorConfig",
    "AgentConfig",
    "AuxiliaryConfig",
    "CameraConfig",
    "CnnConfig",
    "CommandTerm",
    "ControllerTerm",
    "CurriculumTerm",
    "DaggerConfig",
    "DistillationConfig",
    "DistributionConfig",
    "EnvConfig",
    "ErrorTerm",
    "EventTerm",
    "GeomConfig",
    "GymnasiumConfig",
    "KeyframeConfig",
    "LaunchConfig",
    "LightConfig",
    "MirrorConfig",
    "MjlabConfig",
    "ModelConfig",
    "MountedCameraConfig",
    "NamesConfig",
    "NanGuardConfig",
    "ObservationTerm",
    "OptionConfig",
    "PpoConfig",
    "RankContext",
    "RankFailedError",
    "RequestError",
    "RewardTerm",
    "RobotConfig",
    "Run",
    "RunConfig",
    "SensorConfig",
    "SiteConfig",
    "SuccessTerm",
    "SymmetryConfig",
    "TaskConfig",
    "TerminationTerm",
    "TerrainConfig",
    "TrainConfig",
    "VecEnvConfig",
    "WarmStartConfig",
    "WarpConfig",
    "beat",
    "export",
    "launch",
    "load_policy",
    "make_env",
    "make_vec",
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
