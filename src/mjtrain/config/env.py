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

    from_home: bool = False
    """Add the controls of the robot's keyframe "home" to the offset: joint targets relative to its stance."""

    clip: tuple[float, float] = (-1.0, 1.0)
    """Bounds of the action before it is scaled."""

    delay: tuple[int, int] = (0, 0)
    """Least and most env steps until an action takes effect; drawn for each episode."""


@dataclass(frozen=True, kw_only=True)
class ObservationTerm:
    """One entry of an observation group."""

    func: Callable[..., Any]
    """func(env, **params) -> tensor of shape (num_envs, size)."""

    params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""

    scale: float = 1.0
    """Factor, applied after the noise and before the clip."""

    clip: tuple[float, float] | None = None
    """Bounds, after scaling."""

    noise: float = 0.0
    """Uniform noise of up to so much to either side, in the unit of the function; off with observation_noise."""

    history: int = 1
    """How many env steps the policy sees at once, oldest first."""

    delay: tuple[int, int] = (0, 0)
    """Least and most env steps until a reading arrives; drawn for each episode."""


@dataclass(frozen=True, kw_only=True)
class ErrorTerm:
    """How far worlds are from what a command asks; `play` reports it, training never computes it."""

    func: Callable[..., Any]
    """func(env, **params) -> tensor of shape (num_envs,), zero where the command is met."""

    params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""

    unit: str = ""
    """Unit of the function, for reports."""

    settling_s: float = 0.0
    """Seconds after each new draw that do not count."""


@dataclass(frozen=True, kw_only=True)
class CommandTerm:
    """Something the policy is asked to do, drawn anew from time to time."""

    func: Callable[..., Any]
    """func(env, **params) -> tensor of shape (num_envs, size): a new draw for every world."""

    params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""

    resampling_s: tuple[float, float] = (10.0, 10.0)
    """Bounds of the time until the next draw, in seconds; an episode begins with a draw."""

    refine: Callable[..., Any] | None = None
    """refine(env, drawn, before, **refine_params) -> what terms see as the command, each env step; before is what they
    saw an env step earlier, zero where an episode begins, None at the very first. None: what was drawn."""

    refine_params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of refine."""

    errors: dict[str, ErrorTerm] = field(default_factory=dict)
    """Measures of how well it is met, by name; only `play` asks for them."""

    controls: dict[str, tuple[float, float]] = field(default_factory=dict)
    """What a user who commands by hand can set in a viewer: bounds by name."""

    steer: Callable[..., Any] | None = None
    """steer(env, values) -> the draw that these values of the controls stand for, shape (num_envs, size); values have
    the shape (num_controls,). None: nobody can command by hand."""

    is_pose: bool = False
    """It begins with a position in m and a quaternion (w, x, y, z) in the world's frame, which viewers mark."""


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
    """func(env, worlds, **params); changes worlds.qpos and worlds.qvel of whole batches, or the model, in place."""

    params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""

    mode: Literal["startup", "reset", "interval"] = "reset"
    """When it happens: once at the start, when an episode starts, or from time to time."""

    interval_s: tuple[float, float] = (10.0, 15.0)
    """Mode interval: bounds of the time until it happens next, in seconds, drawn for each world."""


@dataclass(frozen=True, kw_only=True)
class CurriculumTerm:
    """A level of difficulty that every world has, moved at the end of its episodes."""

    func: Callable[..., Any]
    """func(env, level, **params) -> the next level of every world, shape (num_envs,); read at the end of episodes."""

    params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""

    initial: tuple[float, float] = (0.0, 0.0)
    """Bounds of the first levels, drawn for each world."""

    bounds: tuple[float, float] = (0.0, 1.0)
    """Least and highest level."""


@dataclass(frozen=True, kw_only=True)
class TerrainConfig:
    """The ground."""

    kind: Literal["robot", "flat", "generated"] = "robot"
    """robot: what the MJCF file has; flat: a plane is added; generated: a height field is added."""

    kinds: tuple[str, ...] = ("rough", "slope_up", "slope_down", "stairs_up", "stairs_down", "obstacles")
    """Kinds of generated ground, a column of patches each; these six are known."""

    num_levels: int = 10
    """Patches of rising difficulty per kind."""

    patch_m: float = 8.0
    """Side of a patch, in m."""

    cell_m: float = 0.1
    """Distance of the height field's points, in m."""

    seed: int = 0
    """Seed of the generated ground, the same on every rank."""

    friction: float = 1.0
    """Sliding friction of the added ground; MuJoCo takes the larger of the two touching geoms."""


@dataclass(frozen=True, kw_only=True)
class NanGuardConfig:
    """What happens to worlds whose state stops being finite: they start anew and are counted as nan_resets."""

    max_fraction: float = 0.1
    """The run ends with an error when more than this fraction of all worlds broke in one iteration."""

    history_s: float = 2.0
    """How much of a broken world is written to {run}/nan, in seconds."""

    max_dumps: int = 5
    """Broken worlds written per rank and run."""


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

    commands: dict[str, CommandTerm] = field(default_factory=dict)
    """Command terms by name."""

    events: dict[str, EventTerm] = field(default_factory=dict)
    """Event terms by name, in the order in which they happen."""

    curriculum: dict[str, CurriculumTerm] = field(default_factory=dict)
    """Curriculum terms by name."""

    observation_noise: bool = True
    """Whether observations carry the noise of their terms; play turns it off."""

    terrain: TerrainConfig = field(default_factory=TerrainConfig)
    """The ground."""

    nan_guard: NanGuardConfig = field(default_factory=NanGuardConfig)
    """What happens to worlds that break."""

    warp: WarpConfig = field(default_factory=WarpConfig)
    """Buffer sizes of the warp engine."""
