"""The MDP: terms and their parameters, and what else an environment has."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from mjtrain.config.limits import (
    AT_LEAST_0,
    AT_LEAST_1,
    FINITE,
    FRACTION,
    MORE_THAN_0,
    NONZERO,
    Duration,
    Ordered,
    Range,
    Time,
    Times,
)
from mjtrain.config.robot import RobotConfig

StreamName = Literal["rgb", "depth", "segmentation"]
"""What a camera can deliver."""

Scale = Annotated[float, NONZERO] | dict[str, Annotated[float, NONZERO]]
"""One factor, or factors by regular expressions over names."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """What all terms have."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values in the named fields, such as `term.replace(noise=0.1)`."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class FunctionTerm(Term):
    """A term that is computed by a function."""

    func: Callable[..., Any]
    """The function, or an object that can be called like one."""

    params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""


@dataclass(frozen=True, kw_only=True)
class ActionTerm(Term):
    """Maps a slice of the policy's output onto actuators: ctrl = offset + scale * clip(action).

    If relative, ctrl = ctrl of the env step before + scale * clip(action).
    """

    actuators: tuple[str, ...] = (".*",)
    """Regular expressions that match whole actuator names; the order is that of the model. One control of an actuator
    that has several is named as in servo:vel."""

    scale: Scale = 1.0
    """Ctrl per unit of action, in the actuator's unit (N, N m, m or rad). Or by regular expressions that match whole
    names of actuators, each actuator by one: for example {".*_knee": 0.35, ".*_ankle": 0.44}."""

    offset: Annotated[float, FINITE] = 0.0
    """Ctrl at action zero, in the actuator's unit."""

    from_home: bool = False
    """Add the controls of the keyframe "home" to the offset, so that actions are relative to that pose."""

    relative: bool = False
    """Add to the control of the env step before, within the actuator's ctrlrange; each episode begins at the offset."""

    clip: Annotated[tuple[float, float], Ordered()] = (-1.0, 1.0)
    """Bounds of the action before it is scaled."""

    delay: Annotated[tuple[int, int], Range(least=0, ordered=True)] = (0, 0)
    """Fewest and most env steps until an action takes effect, drawn for each episode."""

    noise: Annotated[float, AT_LEAST_0] = 0.0
    """Largest uniform noise to either side of ctrl, in the actuator's unit; off with observation_noise."""

    base: Callable[..., Any] | None = None
    """base(env, **base_params) -> controls, shape (num_envs, number of controls of the term), to which scale *
    clip(action) is added instead of offset, such as those of a reference motion. Not with relative or from_home."""

    base_params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of base."""


@dataclass(frozen=True, kw_only=True)
class ObservationTerm(FunctionTerm):
    """One entry of an observation group."""

    func: Callable[..., Any]
    """func(env, **params) -> tensor of shape (num_envs, size), or an image of shape (num_envs, channels, height,
    width)."""

    scale: Annotated[float, NONZERO] = 1.0
    """Factor, applied after the noise and before the clip."""

    clip: Annotated[tuple[float, float] | None, Ordered()] = None
    """Bounds, after scaling."""

    noise: Annotated[float, AT_LEAST_0] = 0.0
    """Largest uniform noise to either side, in the unit of the function; off with observation_noise."""

    history: Annotated[int, AT_LEAST_1] = 1
    """Number of env steps that the policy sees at once, oldest first."""

    delay: Annotated[tuple[int, int], Range(least=0, ordered=True)] = (0, 0)
    """Fewest and most env steps until a reading arrives, drawn for each episode."""

    estimate_error: Callable[..., Any] | None = None
    """estimate_error(estimated, true) -> tensor of shape (num_envs,): how far an estimate of the term is from it, see
    `AuxiliaryConfig`. Both have the term's columns, unscaled. None: the length of the difference."""

    unit: str = ""
    """Unit of that error, for reports."""

    shift: int = 0
    """Images: most pixels by which they are shifted to each side, drawn for each world and env step; the border is
    repeated (Laskin et al. 2020, arXiv:2004.14990). Off with observation_noise."""


@dataclass(frozen=True, kw_only=True)
class ErrorTerm(FunctionTerm):
    """Distance of the worlds from a command. `play` reports it; training never computes it."""

    func: Callable[..., Any]
    """func(env, **params) -> tensor of shape (num_envs,), zero where the command is met."""

    unit: str = ""
    """Unit of the function, for reports."""

    settling_s: Annotated[float, AT_LEAST_0] = 0.0
    """Seconds after each new draw that do not count."""


@dataclass(frozen=True, kw_only=True)
class CommandTerm(FunctionTerm):
    """What the policy is commanded to do, drawn at random from time to time."""

    func: Callable[..., Any]
    """func(env, **params) -> tensor of shape (num_envs, size): a new draw for every world."""

    resampling_s: Times = (10.0, 10.0)
    """Bounds of the time until the next draw, in seconds; an episode also begins with a draw."""

    before_reset: bool = False
    """Drawn only where an episode begins, and before the reset events, which can read it by `Env.drawn_command`."""

    evaluated_params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function that differ in evaluations and `play`, such as where episodes start."""

    refine: Callable[..., Any] | None = None
    """refine(env, drawn, before, **refine_params) -> the command that terms see, computed in each env step. before is
    that of the env step before, zero where an episode begins, None at the start of the run. None: the draw itself."""

    refine_params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of refine."""

    errors: dict[str, ErrorTerm] = field(default_factory=dict)
    """Errors by name; only `play` and evaluations compute them."""

    controls: dict[str, Annotated[tuple[float, float], Ordered()]] = field(default_factory=dict)
    """What can be set by hand in a viewer: bounds by name. With infinite ones, only `play --values` sets it."""

    steer: Callable[..., Any] | None = None
    """steer(env, values) -> the draw for these values of the controls, shape (num_envs, size); values have the shape
    (num_controls,). None: it cannot be commanded by hand."""

    resample_on: str | None = None
    """Name of a success term: where it is true in an env step, the command is drawn again at the end of that step."""

    is_pose: bool = False
    """The command is a position in m, a quaternion (w, x, y, z), or begins with both, in the world's frame: 3, 4, or 7
    and more columns. Viewers mark it."""

    object: str = ""
    """Free joint of the object for which the command is a pose; viewers mark a mere quaternion above it."""


@dataclass(frozen=True, kw_only=True)
class RewardTerm(Term):
    """One addend of the reward; weight * func * step_dt is summed over the terms."""

    func: Callable[..., Any]
    """func(env, **params) -> tensor of shape (num_envs,)."""

    weight: Annotated[float, FINITE]
    """Reward per second at func = 1. 0 turns the term off: its function is not called."""

    params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the function."""


@dataclass(frozen=True, kw_only=True)
class TerminationTerm(FunctionTerm):
    """A condition that ends an episode."""

    func: Callable[..., Any]
    """func(env, **params) -> boolean tensor of shape (num_envs,)."""

    truncates: bool = False
    """The end is not a failure (a time limit, for example), so the value of the last state still counts."""


@dataclass(frozen=True, kw_only=True)
class SuccessTerm(FunctionTerm):
    """Whether the task is done. It is measured, and changes nothing by itself."""

    func: Callable[..., Any]
    """func(env, **params) -> boolean tensor of shape (num_envs,)."""

    hold_s: Time = 0.0
    """Seconds for which the function must be true without interruption until the term is."""

    measure: Literal["end", "ever", "count"] = "end"
    """What success/NAME averages over episodes. end: 1 if the term was true when the episode ended; ever: 1 if it was
    true in any env step; count: in how many env steps it was true. With count, hold_s begins again after each."""


@dataclass(frozen=True, kw_only=True)
class EventTerm(FunctionTerm):
    """A change of the worlds that does not come from the policy: randomisation, a reset, a push."""

    func: Callable[..., Any]
    """func(env, worlds, **params); changes worlds.qpos and worlds.qvel of whole batches, or the model, in place."""

    mode: Literal["startup", "reset", "interval"] = "reset"
    """When it happens: once at the start of the run, when an episode starts, or from time to time."""

    interval_s: Times = (10.0, 15.0)
    """Mode interval: bounds of the time until it happens again, in seconds, drawn for each world."""


@dataclass(frozen=True, kw_only=True)
class CurriculumTerm(FunctionTerm):
    """A level of difficulty of each world, updated at the end of its episodes."""

    func: Callable[..., Any]
    """func(env, level, **params) -> the next level of every world, shape (num_envs,); used where an episode ends."""

    initial: Annotated[tuple[float, float], Ordered()] = (0.0, 0.0)
    """Bounds of the initial levels, drawn for each world."""

    bounds: Annotated[tuple[float, float], Ordered()] = (0.0, 1.0)
    """Lowest and highest level."""


@dataclass(frozen=True, kw_only=True)
class ControllerTerm(FunctionTerm):
    """A controller written by hand, which an actor can imitate before it learns; see `WarmStartConfig`."""

    func: Callable[..., Any]
    """func(env, **params) -> actions, shape (num_envs, num_actions)."""


@dataclass(frozen=True, kw_only=True)
class CameraConfig:
    """A camera of the robot's scene, rendered in every world."""

    camera: str = ""
    """Camera of the MJCF file. Default: the one with the name of this entry."""

    width: Annotated[int, AT_LEAST_1] = 32
    """Columns of the image, in pixels."""

    height: Annotated[int, AT_LEAST_1] = 32
    """Rows of the image, in pixels."""

    streams: tuple[StreamName, ...] = ("rgb",)
    """What is rendered: rgb (colours), depth (distance along the optical axis), segmentation (index of the class)."""

    interval: Annotated[int, AT_LEAST_1] = 1
    """Env steps between frames; an episode begins with a new one."""

    near_m: Annotated[float, MORE_THAN_0] = 0.01
    """Depths below this read as this, in m."""

    far_m: Annotated[float, Range(most=1e30)] = 10.0
    """Depths beyond this, and rays that hit nothing, read as this, in m."""

    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Segmentation: regular expressions over geoms and bodies by class; a body stands for its own geoms. A geom is of
    the first class that matches it; what none matches is background."""

    shadows: bool = False
    """Lights that cast shadows do so. It costs a second ray per light and pixel."""

    geom_groups: Annotated[tuple[int, ...], Range(least=0, most=5)] = (0, 1, 2)
    """Groups of geoms that the camera sees."""


@dataclass(frozen=True, kw_only=True)
class TerrainConfig:
    """The ground."""

    kind: Literal["robot", "flat", "generated"] = "robot"
    """robot: what the MJCF file has; flat: a plane is added; generated: a height field is added."""

    kinds: tuple[str, ...] = ("rough", "slope_up", "slope_down", "stairs_up", "stairs_down", "obstacles")
    """Kinds of generated ground, one column of patches for each. Only these six exist."""

    num_levels: int = 10
    """Patches of rising difficulty per kind."""

    patch_m: Annotated[float, FINITE] = 8.0
    """Side of a patch, in m."""

    cell_m: Annotated[float, MORE_THAN_0] = 0.1
    """Distance between points of the height field, in m."""

    seed: int = 0
    """Seed of the generated ground, the same on every rank."""

    friction: Annotated[float, AT_LEAST_0] = 1.0
    """Sliding friction of the added ground; MuJoCo takes the larger of the two touching geoms."""


@dataclass(frozen=True, kw_only=True)
class NanGuardConfig:
    """Handling of worlds that diverge: they are reset, counted as nan_resets, and their reward is 0.

    These are worlds that MuJoCo calls bad (NaN, or more than 1e10 in a position, velocity or acceleration), in which it
    raises an error, or with a velocity above `max_velocity`.
    """

    max_fraction: Annotated[float, FRACTION] = 0.1
    """The run ends with an error when worlds broke more often in one iteration than this fraction of all worlds. Each
    reset counts."""

    max_velocity: Annotated[float, MORE_THAN_0] = 1e4
    """Largest velocity of a joint in a valid state, in rad/s or m/s. A world that diverges exceeds it many env steps
    before MuJoCo calls it bad, and what it returns until then would spoil normalisers and losses."""

    history_s: Time = 2.0
    """Time before the failure that is written to {run}/nan, in seconds."""

    max_dumps: Annotated[int, AT_LEAST_0] = 5
    """Most broken worlds written per rank, and again after each resume and restart."""


@dataclass(frozen=True, kw_only=True)
class WarpConfig:
    """Settings of the warp engine; the native engine needs none."""

    nconmax: Annotated[int | None, AT_LEAST_0] = None
    """Contacts per world that there is room for, shared by all worlds of a rank. Default: mujoco-warp's guess."""

    njmax: Annotated[int | None, AT_LEAST_0] = None
    """Most constraint rows per world. Default: mujoco-warp's guess."""

    deterministic: bool = False
    """Order contacts and sums in a way that does not depend on how a GPU schedules its threads; not constraint rows."""


if TYPE_CHECKING:

    class _Robot:
        """Tells type checkers what `EnvConfig(robot=...)` takes, and that the field is a `RobotConfig`."""

        def __get__(self, instance: object, owner: object) -> RobotConfig: ...
        def __set__(self, instance: object, value: Any) -> None: ...

else:
    _Robot = RobotConfig


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """A batched environment: a robot and the terms that make it a task."""

    robot: _Robot
    """The robot and its scene. In Python also what `RobotConfig.file` takes, such as the path of an MJCF file."""

    decimation: Annotated[int, AT_LEAST_1]
    """Physics steps per env step."""

    episode_length_s: Duration
    """Longest episode, in seconds of simulated time."""

    actions: dict[str, ActionTerm]
    """Action terms by name; their sizes add up to the size of the policy's output."""

    observations: dict[str, dict[str, ObservationTerm]]
    """Observation groups by name; the terms of a group are concatenated in order."""

    rewards: dict[str, RewardTerm]
    """Reward terms by name."""

    terminations: dict[str, TerminationTerm]
    """Termination terms by name."""

    commands: dict[str, CommandTerm] = field(default_factory=dict)
    """Command terms by name."""

    successes: dict[str, SuccessTerm] = field(default_factory=dict)
    """Success terms by name."""

    events: dict[str, EventTerm] = field(default_factory=dict)
    """Event terms by name; they happen in this order."""

    curriculum: dict[str, CurriculumTerm] = field(default_factory=dict)
    """Curriculum terms by name."""

    controllers: dict[str, ControllerTerm] = field(default_factory=dict)
    """Controllers by name. The environment does not use them; --agent.algorithm.warm-start.controller names one."""

    cameras: dict[str, CameraConfig] = field(default_factory=dict)
    """Rendered cameras by name; the observation terms `camera` read them."""

    observation_noise: bool = True
    """Whether observations and actions carry the noise of their terms; play turns it off."""

    terrain: TerrainConfig = field(default_factory=TerrainConfig)
    """The ground."""

    nan_guard: NanGuardConfig = field(default_factory=NanGuardConfig)
    """Handling of worlds whose state stops being finite."""

    warp: WarpConfig = field(default_factory=WarpConfig)
    """Settings of the warp engine."""

    def __post_init__(self) -> None:
        if not isinstance(self.robot, RobotConfig):
            object.__setattr__(self, "robot", RobotConfig(file=self.robot))
