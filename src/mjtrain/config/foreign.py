"""Environments that someone else wrote: what is known of them before they are made."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from mjtrain.config.env import EnvConfig, NanGuardConfig


@dataclass(frozen=True, kw_only=True)
class ForeignEnvConfig:
    """An environment that is not made of terms: its parts are unknown, except for how an episode ends."""

    robot: ClassVar[None] = None
    """External environments have no mjtrain robot."""

    rewards: ClassVar[tuple[str, ...]] = ("reward",)
    terminations: ClassVar[tuple[str, ...]] = ("terminated", "truncated")
    commands: ClassVar[dict[str, Any]] = {}
    successes: ClassVar[dict[str, Any]] = {}
    curriculum: ClassVar[dict[str, Any]] = {}
    controllers: ClassVar[dict[str, Any]] = {}
    observations: ClassVar[dict[str, Any]] = {}
    cameras: ClassVar[dict[str, Any]] = {}
    nan_guard: ClassVar[NanGuardConfig] = NanGuardConfig()


@dataclass(frozen=True, kw_only=True)
class GymnasiumConfig(ForeignEnvConfig):
    """Environments of Gymnasium by their id."""

    id: str
    """Id in Gymnasium's registry, such as HalfCheetah-v5; module:id imports the module that registers it."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment, as of `gymnasium.make_vec`."""

    vectorization: Literal["sync", "async"] = "sync"
    """sync: one after another in the rank's process; async: a process for each."""

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"gymnasium:{self.id}"


@dataclass(frozen=True, kw_only=True)
class VecEnvConfig(ForeignEnvConfig):
    """Environments that a function makes, all at once."""

    make: Callable[..., Any]
    """make(num_envs=..., device=..., seed=..., **kwargs) -> a `gymnasium.vector.VectorEnv`, or an object with RSL-RL's
    `VecEnv` contract. Each rank calls it once."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the function."""

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{self.make.__module__}:{self.make.__qualname__}"


@dataclass(frozen=True, kw_only=True)
class MjlabConfig(ForeignEnvConfig):
    """Environments of a task in mjlab's registry."""

    task: str
    """Id in the registry, such as Mjlab-Velocity-Flat-Unitree-Go1."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    """Fields of the task's `ManagerBasedRlEnvCfg` that are changed, by their path, such as episode_length_s or
    commands.motion.motion_file."""

    clip_actions: float | None = None
    """Actions are clipped to plus and minus this. Default: the task's; None of a task of your own: not clipped."""

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"mjlab:{self.task}"


ForeignConfig = GymnasiumConfig | VecEnvConfig | MjlabConfig
AnyEnvConfig = EnvConfig | GymnasiumConfig | VecEnvConfig | MjlabConfig
"""The environment of a task: terms on mjtrain's worlds, or an external environment."""
