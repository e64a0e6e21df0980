"""The MDP: terms and their parameters."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class ActionTerm:
    """Maps a slice of the policy's output onto actuators: ctrl = offset + scale * clip(action)."""

    actuators: tuple[str, ...] = (".*",)
    """Regular expressions over actuator names, matched whole; in the order of the model."""

    scale: float = 1.0
    """Ctrl per unit of action, in the actuator's unit (N, N m, m or rad)."""

    offset: float = 0.0
    """Ctrl at action zero, in the actuator's unit."""

    clip: tuple[float, float] = (-1.0, 1.0)
    """Bounds of the action before it is scaled."""


@dataclass(frozen=True, kw_only=True)
class ObservationTerm:
    """One entry of an observation group."""

    func: Callable[..., Any]
    """func(env, **params) -> tensor of shape (num_envs, size)."""

    params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""

    scale: float = 1.0
    """Factor, applied before the clip."""

    clip: tuple[float, float] | None = None
    """Bounds, after scaling."""


@dataclass(frozen=True, kw_only=True)
class RewardTerm:
    """One addend of the reward; weight * func * step_dt is summed over the terms."""

    func: Callable[..., Any]
    """func(env, **params) -> tensor of shape (num_envs,)."""

    weight: float
    """Reward per second at func = 1."""

    params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""


@dataclass(frozen=True, kw_only=True)
class TerminationTerm:
    """One reason for an episode to end."""

    func: Callable[..., Any]
    """func(env, **params) -> boolean tensor of shape (num_envs,)."""

    params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""

    truncates: bool = False
    """The end is no fault of the policy (a time limit): the value of the state still counts."""


@dataclass(frozen=True, kw_only=True)
class EventTerm:
    """Something that happens to worlds from outside the policy."""

    func: Callable[..., Any]
    """func(env, start, **params); changes start.qpos and start.qvel of whole batches in place."""

    params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""

    mode: Literal["reset"] = "reset"
    """When it happens. reset: when an episode starts."""


@dataclass(frozen=True, kw_only=True)
class WarpConfig:
    """Buffer sizes of the warp engine; the native engine needs none."""

    nconmax: int | None = None
    """Contacts per world to make room for. Default: mujoco-warp's guess."""

    njmax: int | None = None
    """Constraint rows per world to make room for. Default: mujoco-warp's guess."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """A batched environment: a robot and the terms that make it a task."""

    robot: str
    """MJCF file of the robot and its surroundings. Its timestep is the physics step."""

    decimation: int
    """Physics steps per env step."""

    episode_length_s: float
    """Longest episode, in seconds of simulated time."""

    actions: dict[str, ActionTerm]
    """Action terms by name; their sizes add up to the size of the policy's output."""

    observations: dict[str, dict[str, ObservationTerm]]
    """Observation groups by name, each a dictionary of terms, concatenated in order."""

    rewards: dict[str, RewardTerm]
    """Reward terms by name."""

    terminations: dict[str, TerminationTerm]
    """Termination terms by name."""

    events: dict[str, EventTerm] = field(default_factory=dict)
    """Event terms by name."""

    warp: WarpConfig = field(default_factory=WarpConfig)
    """Buffer sizes of the warp engine."""
