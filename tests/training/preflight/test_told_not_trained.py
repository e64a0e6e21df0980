"""What cannot be learned or is probably not meant is told before a training, and nothing is said of right tasks."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import mujoco
import pytest
import torch

from mjtrain.api import make_train_config
from mjtrain.config import (
    ActuatorConfig,
    AgentConfig,
    AuxiliaryConfig,
    DistributionConfig,
    EnvConfig,
    GeomConfig,
    KeyframeConfig,
    LaunchConfig,
    LightConfig,
    ModelConfig,
    MountedCameraConfig,
    OptionConfig,
    PpoConfig,
    RobotConfig,
    SensorConfig,
    SiteConfig,
    SymmetryConfig,
    TerrainConfig,
    WarpConfig,
)
from mjtrain.config.limits import find_type_problems
from mjtrain.env.catalog import load_task
from mjtrain.env.env import Env
from mjtrain.env.events import Worlds
from mjtrain.env.term_check import find_term_problems
from mjtrain.mdp import (
    curriculum,
    events,
    observation,
    observations,
    randomization,
    reset_event,
    reward,
    rewards,
    root,
    startup_event,
    termination,
    terminations,
    truncation,
    velocity,
)
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.model import robot_only
from mjtrain.sim.robots.plausibility import Plausibility, Starts
from mjtrain.training.preflight.config_check import check_config
from mjtrain.training.preflight.dry_step import check_task
from support.scenes import HANGING

WALKER = load_task("Quadruped-Velocity-Flat").env
ARM = load_task("Arm-Reach").env
TRACK = load_task("Quadruped-Track").env
CART = load_task("Cartpole-Balance").env
LEGS = (".*_(hip|thigh|calf)",)
OTHER_FEET = ("FL", "FR", "RR", "RL")
OTHER_POSITIONS = tuple(f"{foot}_foot_position" for foot in OTHER_FEET)
NAN = float("nan")
HOME = {".*_thigh": 0.9, ".*_calf": -1.8}

Change = Callable[[EnvConfig], EnvConfig]


@dataclass(frozen=True, kw_only=True)
class HillyConfig(TerrainConfig):
    hills: int = 3


def robot(**changes: Any) -> Change:
    return lambda config: replace(config, robot=replace(config.robot, **changes))


def home(height: float, joints: dict[str, float] = HOME) -> Change:
    return robot(keyframes={"home": KeyframeConfig(height=height, joints=joints)})


def field(**changes: Any) -> Change:
    return lambda config: replace(config, **changes)


def term(group: str, name: str, *, params: dict[str, Any] | None = None, **changes: Any) -> Change:
    def change(config: EnvConfig) -> EnvConfig:
        terms = getattr(config, group)
        before = terms[name]
        after = before.replace(**changes, params={**before.params, **params}) if params else before.replace(**changes)
        return replace(config, **{group: {**terms, name: after}})

    return change


def added(group: str, name: str, new: Any) -> Change:
    return lambda config: replace(config, **{group: {**getattr(config, group), name: new}})


def observed(name: str, new: Any) -> Change:
    return lambda config: replace(
        config, observations={**config.observations, "actor": {**config.observations["actor"], name: new}}
    )


def without(group: str, name: str) -> Change:
    return lambda config: replace(
        config, **{group: {key: value for key, value in getattr(config, group).items() if key != name}}
    )


def both(*changes: Change) -> Change:
    def change(config: EnvConfig) -> EnvConfig:
        for one in changes:
            config = one(config)
        return config

    return change


def planar(axis: str) -> Change:
    """Let the pole turn about another axis."""

    def load() -> mujoco.MjSpec:
        spec = mujoco.MjSpec.from_file(str(CART.robot.file))
        spec.joint("hinge").axis = [float(value) for value in axis.split()]
        return spec

    return robot(file="", spec=load)


def pd(kp: float, kv: float) -> Change:
    return robot(actuators={"legs": ActuatorConfig(joints=LEGS, kp=kp, kv=kv)})


def writes_qpos(env: Env) -> torch.Tensor:
    q = env.qpos(("FR_(hip|thigh|calf)",))
    q *= 1.0
    return q.sum(dim=1)


def writes_command(env: Env) -> torch.Tensor:
    return env.command("velocity").mul_(0.0).sum(dim=1)


def writes_action(env: Env) -> torch.Tensor:
    return env.action.clamp_(-1.0, 1.0).sum(dim=1)


def writes_sensor(env: Env) -> torch.Tensor:
    reading = env.sensor("up")
    reading[:, 2] = 0.0
    return reading.sum(dim=1)


def remembers(env: Env) -> torch.Tensor:
    env.before = env.qpos("base")[:, 2].clone()  # pyright: ignore[reportAttributeAccessIssue]
    return env.qpos("base")[:, 2]


def own_time_limit(env: Env) -> torch.Tensor:
    return env.episode_step * env.step_dt >= 20.0


def huge(env: Env) -> torch.Tensor:
    return 1e6 * env.qpos("base")[:, 2:3]


def bends(env: Env, worlds: Worlds) -> None:
    worlds.qpos[:, 3:7] = 0.0


def buries(env: Env, worlds: Worlds) -> None:
    worlds.qpos[:, 2] = -1.0


def reads_command(env: Env, worlds: Worlds) -> None:
    worlds.qvel[:, 0] = env.command("velocity")[:, 0]


def writes_state(env: Env, worlds: Worlds) -> None:
    env.state.qpos[:, 2] += 0.1


ROUGH = load_task("Quadruped-Velocity-Rough").env


def observes(name: str, **changes: Any) -> Change:
    return lambda config: observed(name, config.observations["actor"][name].replace(**changes))(config)


def acts(**changes: Any) -> Change:
    return lambda config: replace(config, actions={k: term.replace(**changes) for k, term in config.actions.items()})


TABLE = torch.linspace(0.0, 1.0, 20)


def follows_table(env: Env) -> torch.Tensor:
    return TABLE[env.episode_step]


def nothing(env: Env) -> torch.Tensor:
    return torch.zeros(env.num_envs, 0)


def is_nan_at_a_height(env: Env) -> torch.Tensor:
    return (env.qpos("base")[:, 2] - 0.2).sqrt()


def is_nan_at_times(env: Env) -> torch.Tensor:
    return torch.where(env.episode_step == 7, torch.nan, env.qpos("base")[:, 2])


def explodes(env: Env) -> torch.Tensor:
    return env.qvel(LEGS).square().sum(dim=1).exp()


def keeps(env: Env, level: torch.Tensor, command: list[str]) -> torch.Tensor:
    return level


def grows(env: Env) -> torch.Tensor:
    return 1e4 * env.qvel(LEGS).square().sum(dim=1)


def same(env: Env) -> torch.Tensor:
    return torch.full((env.num_envs, 2), 0.3)


def sparse(env: Env) -> torch.Tensor:
    return torch.ones(env.num_envs).to_sparse()


def widens(env: Env) -> torch.Tensor:
    return torch.ones(env.num_envs, 2 if (env.episode_step == 3).any() else 1)


COUNTS: dict[str, int] = {}


def counts(env: Env) -> torch.Tensor:
    COUNTS["calls"] = COUNTS.get("calls", 0) + 1
    return COUNTS["calls"] * env.qpos("base")[:, 2]


def nested(env: Env) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(1) for _ in range(env.num_envs)])


def widens_after_a_step(env: Env) -> torch.Tensor:
    return torch.zeros(env.num_envs, 2 + int(env.episode_step.max() > 0))


def replaces(env: Env) -> torch.Tensor:
    env.episode_step = env.episode_step + 1
    return env.qpos("base")[:, 2]


WRONG: dict[str, tuple[EnvConfig, Change, str]] = {
    "a sparse tensor": (
        CART,
        added("rewards", "own", reward(sparse, 0.1)),
        r"--env\.rewards\.own: sparse\(\) returned a sparse tensor; a reward is .*; append \.to_dense\(\)",
    ),
    "a nested tensor": (
        CART,
        added("rewards", "own", reward(nested, 0.1)),
        r"--env\.rewards\.own: nested\(\) returned a nested tensor; a reward is one value per world",
    ),
    "an observation that gets a column in the first step": (
        WALKER,
        observed("own", observation(widens_after_a_step)),
        r"--env\.observations\.actor\.own: has 3 columns now, and had 2",
    ),
    "a term that replaces what belongs to the environment": (
        WALKER,
        added("rewards", "own", reward(replaces, 0.1)),
        r"--env\.rewards\.own: replaces\(\) replaced env\.episode_step, which belongs to the environment",
    ),
    "a root of what is negative when the robot falls": (
        WALKER,
        added("rewards", "own", reward(is_nan_at_a_height, 0.1)),
        r"--env\.rewards\.own: is_nan_at_a_height\(\) returned nan in",
    ),
    "a reward that is not finite in one env step": (
        WALKER,
        added("rewards", "own", reward(is_nan_at_times, 0.1)),
        r"--env\.rewards\.own: is_nan_at_times\(\) returned nan in",
    ),
    "an exponential of speeds": (
        WALKER,
        added("rewards", "own", reward(explodes, 0.1)),
        r"--env\.rewards\.own: explodes\(\) returned inf in",
    ),
    "an observation that gets a column": (
        WALKER,
        observed("own", observation(widens)),
        r"--env\.observations\.actor\.own: has 2 columns now, and had 1",
    ),
    "a termination that is true in the home pose": (
        WALKER,
        added("terminations", "low", termination(terminations.root_height_below_minimum, joint="base", height_m=0.9)),
        r"--env\.terminations\.low: root_height_below_minimum\(\) is true in the first env step of every episode",
    ),
    "an episode shorter than a step": (
        ARM,
        field(episode_length_s=0.005),
        r"--env\.episode-length-s 0\.005: is shorter than an env step, which lasts 0\.02 s",
    ),
    "a gyro for a velocimeter": (
        WALKER,
        term("rewards", "track_planar", params={"sensor": "base_angular_velocity"}),
        r"--env\.rewards\.track_planar\.params\.sensor base_angular_velocity: is a gyro; give a linear velocity",
    ),
    "a velocity in the world's frame": (
        WALKER,
        robot(sensors={"base_velocity": SensorConfig(type="framelinvel", object="trunk")}),
        r"--env\.rewards\.track_planar\.params\.sensor base_velocity: is a framelinvel in the world's frame",
    ),
    "a velocity of feet in the trunk's frame": (
        WALKER,
        robot(sensors={"FR_foot_velocity": SensorConfig(type="framelinvel", object="FR_calf", reference="trunk")}),
        r"--env\.rewards\.slip\.params\.velocity_sensors FR_foot_velocity: .* in the frame of its reference",
    ),
    "the x axis for the z axis": (
        WALKER,
        robot(sensors={"up": SensorConfig(type="framexaxis", object="trunk")}),
        r"--env\.rewards\.leaning\.params\.sensor up: is a framexaxis; give a z axis",
    ),
    "a position for an orientation": (
        ARM,
        term("rewards", "near", params={"position_sensor": "tool_orientation"}),
        r"--env\.rewards\.near\.params\.position_sensor tool_orientation: is a framequat; give a position",
    ),
    "a joint in degrees": (
        WALKER,
        home(0.28, {".*_thigh": 52.0, ".*_calf": -1.8}),
        r"--env\.robot\.keyframes\.home: joint FR_thigh is at 52 rad, outside its range .*; so is FL_thigh",
    ),
    "a write into positions": (
        WALKER,
        added("rewards", "own", reward(writes_qpos, 1.0)),
        r"own: writes_qpos\(\) wrote into env\.state\.qpos",
    ),
    "a write into the command": (
        WALKER,
        added("rewards", "own", reward(writes_command, 1.0)),
        r"own: writes_command\(\) wrote into env\.command\('velocity'\)",
    ),
    "a write into the action": (
        WALKER,
        added("rewards", "own", reward(writes_action, 1.0)),
        r"own: writes_action\(\) wrote into env\.action",
    ),
    "a write into a sensor": (
        WALKER,
        added("rewards", "own", reward(writes_sensor, 1.0)),
        r"own: writes_sensor\(\) wrote into env\.state\.sensordata",
    ),
    "an event that writes into the state": (
        WALKER,
        added("events", "own", reset_event(writes_state)),
        r"--env\.events\.own: writes_state\(\) wrote into env\.state\.qpos",
    ),
    "a quaternion of zero": (
        WALKER,
        added("events", "own", reset_event(bends)),
        r"--env\.events\.own: bends\(\) left a quaternion of length 0",
    ),
    "an event that reads a command": (
        WALKER,
        added("events", "own", reset_event(reads_command)),
        r"--env\.events\.own: command velocity is not drawn yet: in each env step, commands are drawn after",
    ),
    "a push of a hinge": (
        WALKER,
        term("events", "push", params={"joint": "FR_hip"}),
        r"--env\.events\.push: joint FR_hip is a hinge or a slide; give a free joint",
    ),
    "a patch for a hinge": (
        ROUGH,
        term("events", "patch", params={"joint": "FR_hip"}),
        r"--env\.events\.patch: joint FR_hip is a hinge or a slide; give a free joint",
    ),
    "a start that the first episode replaces": (
        WALKER,
        term("events", "pose", mode="startup"),
        r"--env\.events\.pose: reset_root_state_uniform\(\) changed worlds\.qpos or worlds\.qvel in mode startup",
    ),
    "a table that ends before the episode": (
        WALKER,
        added("rewards", "own", reward(follows_table, 1.0)),
        r"--env\.rewards\.own: follows_table\(\) raised IndexError: index 999 is out of bounds",
    ),
    "an observation of nothing": (
        WALKER,
        observed("own", observation(nothing)),
        r"--env\.observations\.actor\.own: nothing\(\) returned no columns",
    ),
    "controls that steer cannot use": (
        WALKER,
        term("commands", "velocity", controls={"ahead": (-1.0, 1.0)}),
        r"--env\.commands\.velocity\.steer: steer\(\) cannot use 1 values",
    ),
    "cells larger than a patch": (
        ROUGH,
        lambda config: replace(config, terrain=replace(config.terrain, cell_m=20.0)),
        r"--env\.terrain\.cell-m 20: give at most 0\.75",
    ),
    "cells of a grain": (
        ROUGH,
        lambda config: replace(config, terrain=replace(config.terrain, cell_m=1e-4)),
        r"--env\.terrain\.cell-m 0\.0001: makes .* points",
    ),
    "more levels than points": (
        ROUGH,
        lambda config: replace(config, terrain=replace(config.terrain, num_levels=4000)),
        r"--env\.terrain\.cell-m 0\.1: makes .* points with --env\.terrain\.num-levels 4000, more than 1e\+08; give",
    ),
    "a factor beyond single precision": (
        ARM,
        observes("joint_positions", scale=1e300),
        r"--env\.observations\.actor\.joint_positions: is not finite after noise, scale and clip; one of them is too",
    ),
    "infinite bounds of one sign": (
        ARM,
        observes("joint_positions", clip=(float("inf"), float("inf"))),
        r"--env\.observations\.actor\.joint_positions: is not finite after noise, scale and clip; one of them is too",
    ),
    "cells of which the border alone has too many": (
        ROUGH,
        lambda config: replace(
            config, terrain=replace(config.terrain, kinds=("rough",), num_levels=1, patch_m=3.0, cell_m=5e-4)
        ),
        r"--env\.terrain\.cell-m 0\.0005: makes 3\.2e\+08 points",
    ),
    "cells whose number has no float": (
        ROUGH,
        lambda config: replace(config, terrain=replace(config.terrain, cell_m=1e-200)),
        r"--env\.terrain\.cell-m 1e-200: makes inf points",
    ),
    "a reset below the ground": (
        WALKER,
        both(
            added("events", "own", reset_event(buries)),
            added("terminations", "low", termination(root.height_out_of_range, joint="base", low=0.1)),
        ),
        r"--env\.events\.own: leaves trunk 1\..* m in the ground",
    ),
}

DOUBTFUL: dict[str, tuple[EnvConfig, Change, str]] = {
    "bounds that no reading reaches": (
        ARM,
        observes("joint_positions", clip=(5.0, 6.0)),
        r"--env\.observations\.actor\.joint_positions: was 5 5 5 … in both worlds",
    ),
    "adaptive sampling without a count of failures": (
        TRACK,
        both(without("curriculum", "sampling"), added("curriculum", "own", curriculum(keeps, command=["motion"]))),
        r"--env\.commands\.motion\.params\.sampling adaptive: no curriculum counts failures, so that frames are drawn "
        r'uniformly; add curriculum\(tracking\.adaptive_sampling, command="motion"\)',
    ),
    "a factor that leaves nothing": (
        ARM,
        observes("joint_positions", scale=1e-300),
        r"--env\.observations\.actor\.joint_positions: was -?0 -?0 -?0 … in both worlds",
    ),
    "a planar root that turns the other way": (
        CART,
        both(planar("0 -1 0"), observed("own", observation(root.projected_gravity, joint="hinge"))),
        r"--env\.observations\.actor\.own\.params\.joint hinge: has the axis 0 -1 0 in the world; "
        r"projected_gravity\(\) is made for 0 1 0",
    ),
    "a height along the world's x": (
        CART,
        added("terminations", "low", termination(root.height_out_of_range, joint="slider", low=-9.0)),
        r"--env\.terminations\.low\.params\.joint slider: has the axis 1 0 0 in the world; height_out_of_range\(\) "
        "is made for 0 0 1",
    ),
    "no ground": (WALKER, field(terrain=TerrainConfig()), r"--env\.terrain\.kind robot: no geom is a ground for trunk"),
    "home in the ground": (WALKER, home(0.1), r"--env\.robot\.keyframes\.home: trunk begins 0\..* m in the ground"),
    "home in the air": (WALKER, home(1.0), r"--env\.robot\.keyframes\.home: trunk begins more than 0\.2 m above"),
    "a start in the air": (
        WALKER,
        term("events", "pose", params={"z": (1.0, 1.1)}),
        r"--env\.events\.pose: trunk begins more than 0\.2 m above the ground",
    ),
    "a start in the ground": (
        WALKER,
        term("events", "pose", params={"z": (-0.3, -0.2)}),
        r"--env\.events\.pose: leaves trunk 0\..* m in the ground",
    ),
    "a joint outside its range": (
        WALKER,
        home(0.28, {".*_thigh": 0.9, ".*_calf": 0.4}),
        r"--env\.robot\.keyframes\.home: joint FR_calf is at 0\.4 rad, outside its range .*; so is FL_calf, RR_calf",
    ),
    "no time limit": (WALKER, without("terminations", "time_out"), r"--env\.terminations: none is true after episode"),
    "no terminations": (ARM, field(terminations={}), r"--env\.terminations: none is true after episode_length_s"),
    "a time limit as a failure": (
        CART,
        added("terminations", "time_out", termination(terminations.time_out)),
        r"--env\.terminations\.time_out: time_out\(\) is not a failure",
    ),
    "one's own time limit as a failure": (
        WALKER,
        added("terminations", "end", termination(own_time_limit)),
        r"--env\.terminations\.end: own_time_limit\(\) is not a failure",
    ),
    "the end of a clip as a failure": (
        TRACK,
        term("terminations", "clip_ended", truncates=False),
        r"--env\.terminations\.clip_ended: motion_ended\(\) is not a failure",
    ),
    "a failure that truncates": (
        WALKER,
        term("terminations", "tilted", truncates=True),
        r"--env\.terminations\.tilted: bad_orientation\(\) is a failure",
    ),
    "a reward for failures where nothing fails": (
        ARM,
        added("rewards", "fell", reward(rewards.is_terminated, -10.0)),
        r"--env\.rewards\.fell: is always 0",
    ),
    "a penalty that rewards": (
        WALKER,
        term("rewards", "action_rate", weight=0.02),
        r"--env\.rewards\.action_rate\.weight 0\.02: rewards what action_rate\(\) measures",
    ),
    "torques that are rewarded": (
        ARM,
        added("rewards", "torques", reward(rewards.joint_torques_squared, 1e-4, joints=(".*",))),
        r"--env\.rewards\.torques\.weight 0\.0001: rewards what joint_torques_squared\(\) measures",
    ),
    "a reward that penalises": (
        ARM,
        term("rewards", "near", weight=-1.0),
        r"--env\.rewards\.near\.weight -1: penalises what near_position\(\) measures",
    ),
    "a curriculum with another weight": (
        WALKER,
        added(
            "curriculum",
            "speed",
            curriculum(velocity.command_level, reward="track_planar", full=1.0, share=0.8, step=0.1),
        ),
        r"--env\.curriculum\.speed\.params\.full 1: the weight of rewards\.track_planar, .* is 3",
    ),
    "a clock of another gait": (
        WALKER,
        both(
            term("rewards", "keep_step", params={"frequency_hz": 1.5}),
            term("rewards", "lift_feet", params={"frequency_hz": 1.5}),
        ),
        r"--env\.rewards\.keep_step\.params\.frequency_hz 1\.5: the clock that the policy observes has 2\.5",
    ),
    "two gaits at once": (
        WALKER,
        term("rewards", "lift_feet", params={"duty": 0.7}),
        r"--env\.rewards\.lift_feet\.params\.duty 0\.7: is 0\.55 in rewards\.keep_step",
    ),
    "a stride of one env step": (
        WALKER,
        term("rewards", "keep_step", params={"frequency_hz": 50.0}),
        r"--env\.rewards\.keep_step\.params\.frequency_hz 50: a stride is shorter than two env steps",
    ),
    "a command that is never reached": (
        WALKER,
        lambda config: replace(
            config,
            commands={
                name: command.replace(refine_params={**command.refine_params, "acceleration": 0.1})
                for name, command in config.commands.items()
            },
        ),
        r"--env\.commands\.velocity\.refine-params\.acceleration 0\.1: in 5 s, .* the command reaches 0\.5 m/s",
    ),
    "a long physics step": (ARM, robot(timestep=0.05), r"--env\.robot\.timestep 0\.05: is long for a physics step"),
    "a long env step": (ARM, field(decimation=100), r"--env\.decimation 100: an env step lasts 0\.5 s"),
    "a success that no episode has time for": (
        load_task("Arm-Lift-Cube").env,
        lambda config: replace(
            config, successes={name: success.replace(hold_s=1000.0) for name, success in config.successes.items()}
        ),
        r"hold-s 1000: is longer than an episode",
    ),
    "an action that moves nothing": (
        ARM,
        lambda config: replace(
            config, actions={name: action.replace(scale=1e-4) for name, action in config.actions.items()}
        ),
        r"--env\.actions\..*\.scale 0\.0001: actions ask .* move nearly nothing",
    ),
    "actions in degrees": (
        ARM,
        lambda config: replace(
            config, actions={name: action.replace(scale=360.0) for name, action in config.actions.items()}
        ),
        r"--env\.actions\..*\.scale 360: its control range is .*nearly every action is at its end",
    ),
    "gains in degrees": (
        WALKER,
        pd(35.0 / 57.3, 1.0 / 57.3),
        r"--env\.robot, gains of FR_hip, .*: kp 0\.6108 is too weak",
    ),
    "motors of a toy": (
        WALKER,
        robot(actuators={"legs": ActuatorConfig(joints=LEGS, kp=35.0, kv=1.0, force_range=(-0.01, 0.01))}),
        r"--env\.robot, gains of FR_hip, .*: a force of at most 0\.01 is too weak",
    ),
    "feet that must not touch the ground": (
        WALKER,
        term("terminations", "fallen", params={"sensors": (".*_contact",)}),
        r"--env\.terminations\.fallen: ended all \d+ episodes of a trial with random actions within",
    ),
    "gains times degrees": (WALKER, pd(35.0 * 57.3, 1.0 * 57.3), r"--env\.robot, gains of FR_hip, .* is too stiff"),
    "damping forgotten": (WALKER, pd(35.0, 0.0), r"--env\.robot, gains of FR_hip, .*: kv 0 hardly damps kp 35"),
    "damping for the stiffness": (WALKER, pd(1.0, 35.0), r"--env\.robot, gains of FR_hip, .*"),
    "new servos beside old motors": (
        replace(CART, actions={"all": replace(next(iter(CART.actions.values())), actuators=(".*",))}),
        robot(actuators={"pole": ActuatorConfig(joints=("hinge",), kp=10.0, kv=1.0)}),
        r"--env\.actions\.all: has one scale for 1 position or velocity actuators and 1 motors \(push\)",
    ),
    "a speck that feels": (
        WALKER,
        robot(
            sites={"speck": SiteConfig(body="trunk", size=(0.001, 0.001, 0.001))},
            sensors={"knock": SensorConfig(type="touch", object="speck")},
        ),
        r"--env\.robot, touch sensor knock: its site speck is 3\.5 mm wide",
    ),
    "memory on the environment": (
        WALKER,
        added("rewards", "own", reward(remembers, 1.0)),
        r"--env\.rewards\.own: remembers\(\) keeps env\.before, which checkpoints do not save",
    ),
    "a delay that no episode is long enough for": (ARM, acts(delay=(0, 300)), r"--env\.actions\..*\.delay 300: an ep"),
    "a history that no episode is long enough for": (
        ARM,
        observes("joint_positions", history=500),
        r"--env\.observations\.actor\.joint_positions\.history 500: an episode has 300 env steps",
    ),
    "an error that never counts": (
        ARM,
        lambda config: term(
            "commands", "pose", errors={"x": config.commands["pose"].errors["angle"].replace(settling_s=9.0)}
        )(config),
        r"--env\.commands\.pose\.errors\.x\.settling-s 9: the next draw comes after 3 s",
    ),
    "an observation of one value": (
        ARM,
        observes("joint_positions", clip=(1.0, 1.0)),
        r"--env\.observations\.actor\.joint_positions\.clip 1 1: every reading is the same",
    ),
    "noise beyond the actions": (ARM, acts(noise=50.0), r"--env\.actions\..*\.noise 50: is more than all"),
    "a push in every step": (
        WALKER,
        term("events", "push", interval_s=(0.0, 0.0)),
        r"--env\.events\.push\.interval-s 0 0: happens in every env step",
    ),
    "patches of flat ground": (
        ROUGH,
        field(terrain=TerrainConfig(kind="flat")),
        r"needs a generated ground, and --env\.terrain\.kind is flat",
    ),
    "levels that the ground has not": (
        ROUGH,
        term("curriculum", "terrain", bounds=(0.0, 50.0)),
        r"--env\.curriculum\.terrain\.bounds 0 50: the ground has levels 0 to 9",
    ),
    "a level that cannot change": (
        ROUGH,
        term("curriculum", "terrain", bounds=(0.0, 0.0), initial=(0.0, 0.0)),
        r"--env\.curriculum\.terrain\.bounds 0 0: the level is always the same",
    ),
    "levels from end to end": (
        ROUGH,
        term("curriculum", "terrain", params={"step": 100.0}),
        r"--env\.curriculum\.terrain\.params\.step 100: is more than all levels",
    ),
    "a level that no term reads": (
        WALKER,
        added(
            "curriculum",
            "speed",
            curriculum(velocity.command_level, reward="track_planar", full=3.0, share=0.8, step=0.1),
        ),
        r"--env\.curriculum\.speed: no term reads this level",
    ),
    "a mass in percent": (
        WALKER,
        term("events", "payload", params={"factor": (90.0, 120.0)}),
        r"--env\.events\.payload\.params\.factor 90 120: multiplies what the model has",
    ),
    "gains of zero": (
        WALKER,
        term("events", "gains", params={"factor": (0.0, 0.0)}),
        r"events\.gains.*: no actuator",
    ),
    "a factor of zero": (
        CART,
        added("events", "own", startup_event(randomization.armature, joints=("hinge",), factor=(0.5, 2.0))),
        r"--env\.events\.own: armature\(\) multiplies the armature of hinge, which is 0",
    ),
    "limits of an actuator without a force range": (
        CART,
        added("events", "own", reset_event(randomization.effort_limits, actuators=(".*",), factor=(0.5, 1.0))),
        r"--env\.events\.own: effort_limits\(\) changes nothing of push, which has no force range",
    ),
    "a fall in degrees": (
        CART,
        term("terminations", "pole_fell", params={"limit": 30.0}),
        r"--env\.terminations\.pole_fell\.params\.limit 30: ",
    ),
    "starts in degrees": (
        CART,
        term("events", "start_pole", params={"position": (-10.0, 10.0)}),
        r"--env\.terminations\.pole_fell: joint_out_of_range\(\) is true in the first env step of most episodes",
    ),
    "a command that the policy does not see": (
        ARM,
        lambda config: replace(
            config,
            observations={
                "actor": {k: term for k, term in config.observations["actor"].items() if "command" not in term.params}
            },
        ),
        r"--env\.rewards\.near: rewards what command pose asks for, and no observation shows that command",
    ),
    "no reward": (
        ARM,
        lambda config: replace(config, rewards={k: term.replace(weight=0.0) for k, term in config.rewards.items()}),
        r"--env\.rewards: the weight of every term is 0",
    ),
    "an observation that is always the same": (
        WALKER,
        observed("own", observation(same)),
        r"--env\.observations\.actor\.own: was 0\.3 0\.3 in both worlds and all env steps",
    ),
    "a count in the module of the task": (
        WALKER,
        added("rewards", "own", reward(counts, 0.1)),
        r"--env: the functions of the task change COUNTS from env step to env step",
    ),
    "velocities of other feet": (
        WALKER,
        term("rewards", "slip", params={"velocity_sensors": tuple(f"{foot}_foot_velocity" for foot in OTHER_FEET)}),
        r"--env\.rewards\.slip\.params\.velocity_sensors FL_foot_velocity: is on FL_.*FR_foot_contact",
    ),
    "offsets of other feet": (
        WALKER,
        term("rewards", "lift_feet", params={"position_sensors": OTHER_POSITIONS}),
        r"--env\.rewards\.lift_feet\.params\.offsets: FL_\w+ has 0, and 0\.5 in rewards\.keep_step",
    ),
    "a height below the ground": (
        WALKER,
        added("terminations", "low", termination(terminations.root_height_below_minimum, joint="base", height_m=-1.0)),
        r"--env\.terminations\.low\.params\.height_m -1: is below the ground",
    ),
    "gravity upwards": (
        WALKER,
        lambda config: replace(
            config, robot=replace(config.robot, options=replace(config.robot.options, gravity=(0.0, 0.0, 9.81)))
        ),
        r"--env\.robot\.options\.gravity 0 0 9\.81: 0 0 -9\.81 is usual",
    ),
    "a sensor of what cannot move": (
        WALKER,
        both(
            robot(sensors={"world_up": SensorConfig(type="framezaxis", object="world")}),
            observed("own", observation(observations.sensor, sensor="world_up")),
        ),
        r"--env\.observations\.actor\.own: was 0 0 1 in both worlds",
    ),
    "a huge reward": (
        WALKER,
        added("rewards", "own", reward(grows, 1.0)),
        r"--env\.rewards\.own: was .*e\+0. per second in a trial",
    ),
    "a huge observation": (
        WALKER,
        observed("own", observation(huge)),
        r"--env\.observations\.actor\.own: reads .*e\+0",
    ),
}

SEEN_WHILE_MOVING = {
    "feet that must not touch the ground",
    "an observation that is always the same",
    "a count in the module of the task",
    "a sensor of what cannot move",
    "a huge reward",
}
"""Those of them that are told after the trial with random actions; all others are told whatever that finds."""

OUT_OF_RANGE: dict[str, tuple[EnvConfig, Change, str]] = {
    "tolerance 0": (
        WALKER,
        term("rewards", "track_turn", params={"tolerance": 0.0}),
        r"tolerance 0: must be more than",
    ),
    "tolerance -1": (ARM, term("rewards", "exact", params={"tolerance_m": -1.0}), r"tolerance_m -1: must be more than"),
    "duty 1.6": (WALKER, term("rewards", "keep_step", params={"duty": 1.6}), r"params\.duty 1\.6: must be more than 0"),
    "scale 0": (
        ARM,
        lambda config: replace(
            config, actions={name: action.replace(scale=0.0) for name, action in config.actions.items()}
        ),
        r"scale 0: must be other than 0",
    ),
    "observation scale 0": (
        WALKER,
        observed("up", WALKER.observations["actor"]["up"].replace(scale=0.0)),
        r"up\.scale 0",
    ),
    "bounds reversed": (
        WALKER,
        term("events", "pose", params={"z": (0.1, 0.0)}),
        r"params\.z 0\.1 0: the first is more",
    ),
    "factor negative": (
        WALKER,
        added("events", "m", startup_event(randomization.mass, bodies=("trunk",), factor=(-0.9, 1.1))),
        r"events\.m\.params\.factor -0\.9 1\.1: each must be more than 0",
    ),
    "command reversed": (ARM, term("commands", "pose", params={"x": (0.5, 0.2)}), r"params\.x 0\.5 0\.2: the first"),
    "fraction 1.5": (
        WALKER,
        term("commands", "velocity", params={"standing_fraction": 1.5}),
        r"standing_fraction 1\.5",
    ),
    "limit in degrees": (
        WALKER,
        term("terminations", "tilted", params={"limit": 60.0}),
        r"limit 60: .* at most 3\.14159",
    ),
    "low above high": (
        WALKER,
        added("terminations", "x", termination(root.height_out_of_range, joint="base", low=1.0, high=0.2)),
        r"terminations\.x\.params\.low 1: is more than high, 0\.2",
    ),
    "initial outside bounds": (
        WALKER,
        added(
            "curriculum",
            "x",
            curriculum(velocity.command_level, reward="track_planar", full=3.0, share=0.8, step=0.1).replace(
                initial=(5.0, 5.0)
            ),
        ),
        r"--env\.curriculum\.x\.initial 5\.0 5\.0: must be within its bounds, 0\.0 to 1\.0",
    ),
    "push negative": (
        WALKER,
        term("events", "push", params={"linear": -0.5}),
        r"params\.linear -0\.5: must be at least 0",
    ),
    "gravity that is not a number": (
        WALKER,
        robot(options=OptionConfig(gravity=(0.0, 0.0, NAN))),
        r"options\.gravity 0 0 nan: each must be finite",
    ),
    "noslip iterations -1": (
        WALKER,
        robot(options=OptionConfig(noslip_iterations=-1)),
        r"noslip-iterations -1: must be at least 0",
    ),
    **{
        f"{name} beyond 32 bits": (WALKER, change, rf"{name} {2**31}: must be at least .* and at most {2**31 - 1}")
        for name, change in (
            *(
                (name.replace("_", "-"), robot(options=replace(OptionConfig(), **{name: 2**31})))
                for name in ("iterations", "ls_iterations", "noslip_iterations", "ccd_iterations")
            ),
            *(
                (name, robot(geoms={"g": replace(GeomConfig(), **{name: 2**31})}))
                for name in ("contype", "conaffinity", "condim", "priority")
            ),
            ("num", robot(sensors={"s": SensorConfig(num=2**31)})),
        )
    },
    "a site without a name": (
        WALKER,
        robot(sites={5: SiteConfig()}),
        r"--env\.robot\.sites 5: is the number 5; give a string",
    ),
    "a joint whose new name is for a number": (
        WALKER,
        lambda config: replace(
            config,
            robot=replace(config.robot, names=replace(config.robot.names, joints={5: "a"})),  # pyright: ignore[reportArgumentType]
        ),
        r"--env\.robot\.names\.joints 5: is the number 5; give a string",
    ),
    "a site that is nowhere": (WALKER, robot(sites={"s": SiteConfig(pos=(NAN, 0.0, 0.0))}), r"sites\.s\.pos nan 0 0: "),
    "a group beyond 5": (WALKER, robot(geoms={"g": GeomConfig(group=6)}), r"group 6: must be at least 0 and at most 5"),
    "a colour of 255": (
        WALKER,
        robot(geoms={"g": GeomConfig(rgba=(255.0, 0.0, 0.0, 1.0))}),
        r"rgba 255 0 0 1: each must be at least 0 and at most 1",
    ),
    "a light without direction": (WALKER, robot(lights={"l": LightConfig(dir=(0.0, 0.0, 0.0))}), r"dir 0 0 0: must be"),
    "patches that are not a number": (
        WALKER,
        field(terrain=TerrainConfig(patch_m=NAN)),
        r"patch-m nan: must be finite",
    ),
    "njmax -1": (WALKER, field(warp=WarpConfig(njmax=-1)), r"--env\.warp\.njmax -1: must be at least 0"),
    "a config with a field that is not mjtrain's": (
        WALKER,
        lambda config: replace(config, terrain=HillyConfig()),
        r"--env\.terrain: is a HillyConfig with the field hills, which no run could be opened with; give a ",
    ),
    "an episode of ages": (WALKER, field(episode_length_s=1e300), r"more than 0 and at most 1e\+09"),
    "a command for ever": (
        WALKER,
        term("commands", "velocity", resampling_s=(1e30, 1e30)),
        r"--env\.commands\.velocity\.resampling-s 1e\+30 1e\+30: each must be at least 0 and at most 1e\+09",
    ),
    "timestep 0": (WALKER, robot(timestep=0.0), r"--env\.robot\.timestep 0: must be more than 0"),
    "a target in degrees": (
        ARM,
        term("commands", "pose", params={"yaw": (-90.0, 90.0)}),
        r"yaw -90 90: each must",
    ),
    "an offset that is not a number": (ARM, acts(offset=float("nan")), r"offset nan: must be finite"),
    "controls reversed": (
        WALKER,
        term("commands", "velocity", controls={"ahead": (1.0, -1.0), "left": (-1.0, 1.0), "turn": (-1.0, 1.0)}),
        r"--env\.commands\.velocity\.controls\.ahead 1 -1: the first is more than the second",
    ),
    "a quaternion that is none": (
        WALKER,
        robot(keyframes={"home": KeyframeConfig(quat=(0.0, 0.0, 0.0, 0.0))}),
        r"--env\.robot\.keyframes\.home\.quat 0 0 0 0: must be finite, and not zero",
    ),
    "a height that is not a number": (WALKER, home(float("nan")), r"keyframes\.home\.height nan: must be finite"),
    "an infinite gain": (WALKER, pd(float("inf"), 1.0), r"--env\.robot\.actuators\.legs\.kp inf: must be finite"),
    "cells of zero": (
        ROUGH,
        lambda config: replace(config, terrain=replace(config.terrain, cell_m=0.0)),
        r"--env\.terrain\.cell-m 0: must be more than 0",
    ),
    "one action": (
        ARM,
        lambda config: replace(
            config, actions={name: term.replace(clip=(1.0, 1.0)) for name, term in config.actions.items()}
        ),
        r"clip 1 1: every action is the same",
    ),
}

IDLE: dict[str, tuple[EnvConfig, Change, str]] = {
    "parameters of a base that is not there": (
        ARM,
        acts(base_params={"share": 0.0}),
        r"--env\.actions\.\w+\.base-params: need base, the function that takes them",
    ),
    "actuators of no joint": (
        WALKER,
        robot(actuators={"legs": ActuatorConfig(joints=())}),
        r"--env\.robot\.actuators\.legs\.joints: is empty; give expressions",
    ),
    "geoms that stay as they are": (
        WALKER,
        robot(geoms={"feet": GeomConfig(geoms=(".*_foot",))}),
        r"--env\.robot\.geoms\.feet: changes nothing; give what the geoms get",
    ),
    "a collision that other fields replace": (
        WALKER,
        robot(geoms={"feet": GeomConfig(geoms=(".*_foot",), collision=True, contype=2, conaffinity=0)}),
        r"--env\.robot\.geoms\.feet\.collision True: contype and conaffinity replace it; leave it out",
    ),
    "a camera that turns to a body and is fixed": (
        WALKER,
        robot(cameras={"watch": MountedCameraConfig(target="trunk")}),
        r"--env\.robot\.cameras\.watch\.target trunk: needs mode targetbody or targetbodycom",
    ),
    "a flag that is off and on": (
        WALKER,
        robot(options=OptionConfig(disable=("gravity", "contact"), enable=("contact",))),
        r"--env\.robot\.options\.disable contact: is in enable too; leave it out of one of them",
    ),
}

AGENTS: dict[str, AgentConfig] = {
    "--agent.obs-groups 5: is the number 5; give a string": AgentConfig(
        obs_groups={5: ("actor",)}  # pyright: ignore[reportArgumentType]
    ),
    "--agent.algorithm.symmetry-cfg.mirror-loss-coeff nan: must be at least 0 and finite": AgentConfig(
        algorithm=PpoConfig(symmetry_cfg=SymmetryConfig(mirror_loss_coeff=NAN))
    ),
    "--agent.algorithm.gamma 1.5: must be at least 0 and at most 1": AgentConfig(algorithm=PpoConfig(gamma=1.5)),
    "--agent.algorithm.gamma 1.0000001: must be at least 0 and at most 1": AgentConfig(
        algorithm=PpoConfig(gamma=1.0000001)
    ),
    "--agent.algorithm.lam -0.1: must be at least 0 and at most 1": AgentConfig(algorithm=PpoConfig(lam=-0.1)),
    "--agent.algorithm.learning-rate 10: must be at least 0 and less than 1": AgentConfig(
        algorithm=PpoConfig(learning_rate=10.0)
    ),
    "--agent.algorithm.desired-kl 0: must be more than 0": AgentConfig(algorithm=PpoConfig(desired_kl=0.0)),
    "--agent.algorithm.clip-param 0: must be more than 0": AgentConfig(algorithm=PpoConfig(clip_param=0.0)),
    "--agent.algorithm.auxiliary-cfg.coef -1: must be at least 0": AgentConfig(
        algorithm=PpoConfig(auxiliary_cfg=AuxiliaryConfig(coef=-1.0))
    ),
    "--agent.algorithm.entropy-coef nan: must be at least 0 and finite": AgentConfig(
        algorithm=PpoConfig(entropy_coef=float("nan"))
    ),
    "--agent.actor.distribution-cfg.init-std -0.8: must be more than 0": AgentConfig(
        actor=ModelConfig(distribution_cfg=DistributionConfig(init_std=-0.8))
    ),
}


@pytest.mark.parametrize("what", IDLE)
def test_settings_without_effect_are_refused_unless_a_run_has_trained_with_them(what: str) -> None:
    env, change, words = IDLE[what]
    config = make_train_config("Cartpole-Balance")
    group = next(iter(env.observations))
    agent = replace(config.agent, obs_groups={"actor": (group,), "critic": (group,)})
    config = replace(config, env=change(env), agent=agent)
    with pytest.raises(RequestError, match=words):
        check_config(config, LaunchConfig())
    check_config(replace(config, run=replace(config.run, resume="logs/run")), LaunchConfig())


@pytest.mark.parametrize("what", WRONG)
def test_what_no_task_can_mean_is_refused(what: str) -> None:
    config, change, words = WRONG[what]
    with pytest.raises(RequestError, match=words):
        check_task(change(config))


@pytest.mark.parametrize("what", DOUBTFUL)
def test_what_is_probably_not_meant_is_a_warning(what: str, request: pytest.FixtureRequest) -> None:
    config, change, words = DOUBTFUL[what]
    if what not in SEEN_WHILE_MOVING:
        request.getfixturevalue("short_trial")
    said = check_task(change(config)).warnings
    assert any(re.search(words, line) for line in said), said


@pytest.mark.parametrize("what", OUT_OF_RANGE)
def test_a_number_out_of_its_range_is_refused(what: str) -> None:
    config, change, words = OUT_OF_RANGE[what]
    assert not find_term_problems(config)
    (problem,) = find_term_problems(change(config))
    assert re.search(words, problem), problem


@pytest.mark.parametrize("problem", AGENTS)
def test_a_learning_parameter_out_of_its_range_is_refused(problem: str) -> None:
    assert find_type_problems(AgentConfig, AGENTS[problem], "--agent") == [problem]


def test_words_in_a_pair_that_may_be_none_are_not_numbers() -> None:
    assert find_term_problems(observes("joint_positions", clip=("low", "high"))(ARM)) == [
        "--env.observations.actor.joint_positions.clip: is the string 'low'; give a number",
        "--env.observations.actor.joint_positions.clip: is the string 'high'; give a number",
    ]


RIGHT: dict[str, tuple[EnvConfig, Change]] = {
    "starts on another pose than the one in the ground": (
        WALKER,
        both(home(0.1), term("events", "pose", params={"z": (0.22, 0.24)})),
    ),
    "frames of a motion that are drawn uniformly": (
        TRACK,
        both(without("curriculum", "sampling"), term("commands", "motion", params={"sampling": "uniform"})),
    ),
    "a time limit of one's own": (
        WALKER,
        both(without("terminations", "time_out"), added("terminations", "end", truncation(own_time_limit))),
    ),
    "episodes that end with the clip": (TRACK, without("terminations", "time_out")),
    "no gravity and no ground": (
        WALKER,
        both(
            lambda config: replace(
                config, robot=replace(config.robot, options=replace(config.robot.options, gravity=(0.0, 0.0, 0.0)))
            ),
            field(terrain=TerrainConfig()),
        ),
    ),
    "no noise": (WALKER, field(observation_noise=False)),
    "a penalty that is off": (WALKER, term("rewards", "action_rate", weight=0.0)),
    "a velocity in the frame of a body": (
        WALKER,
        robot(sensors={"base_velocity": SensorConfig(type="framelinvel", object="trunk", reference="trunk")}),
    ),
}


@pytest.mark.parametrize("what", RIGHT)
def test_nothing_is_said_of_what_some_tasks_need(what: str) -> None:
    config, change = RIGHT[what]
    assert check_task(change(config)).warnings == ()


FLYER = """
<mujoco>
  <worldbody>
    <body name="drone" pos="0 0 2"><freejoint name="root"/><geom size="0.1"/><site name="rotor"/></body>
  </worldbody>
  <actuator><motor name="lift" site="rotor" gear="0 0 1 0 0 0"/></actuator>
</mujoco>
"""


def load_flyer() -> Any:
    return mujoco.MjSpec.from_string(FLYER)


def test_what_flies_needs_no_ground() -> None:
    config = replace(
        CART,
        robot=replace(CART.robot, file="", spec=load_flyer, keyframes={}),
        actions={"lift": next(iter(CART.actions.values())).replace(actuators=("lift",))},
        observations={"actor": {"height": observation(root.base_height, joint="root")}},
        rewards={"height": reward(root.height_in_range, 1.0, joint="root", low=1.0)},
        terminations={"time_out": truncation(terminations.time_out)},
        events={"pose": reset_event(events.reset_root_state_uniform, joint="root")},
    )
    assert check_task(config).warnings == ()


INPUTS = """
<mujoco>
  <worldbody>
    <body><joint name="rail" type="slide" axis="1 0 0" damping="0.1"/><geom type="box" size=".1 .1 .1"/></body>
    <body pos="0 1 0"><joint name="turn" axis="0 0 1" damping="0.1"/><geom type="box" size=".2 .1 .1"/></body>
  </worldbody>
  <actuator>
    <pid name="servo" joint="turn" kp="5" kv="1" input="pos vel ff"/>
    <motor name="push" joint="rail" ctrlrange="-1 1"/>
  </actuator>
</mujoco>
"""


def load_inputs() -> Any:
    return mujoco.MjSpec.from_string(INPUTS)


@pytest.mark.parametrize(
    ("actuators", "scale", "says"),
    [
        ((".*",), 1.0, ()),
        (("servo:vel", "push"), 1.0, ()),
        (("push",), 1e-4, ("--env.actions.all.scale 0.0001: actions ask push for",)),
        (("servo:pos", "push"), 1e-4, ("--env.actions.all.scale 0.0001: actions ask push for",)),
    ],
)
def test_actuators_with_several_controls_are_judged_by_theirs(
    actuators: tuple[str, ...], scale: float, says: tuple[str, ...]
) -> None:
    config = replace(
        CART,
        robot=replace(CART.robot, file="", spec=load_inputs, keyframes={}),
        actions={"all": next(iter(CART.actions.values())).replace(actuators=actuators, scale=scale)},
        observations={"actor": {"place": observation(observations.joint_positions, joints=(".*",))}},
        rewards={"alive": reward(rewards.is_alive, 1.0)},
        terminations={"time_out": truncation(terminations.time_out)},
        events={},
    )
    warnings = check_task(config).warnings
    assert len(warnings) == len(says)
    assert all(line.startswith(start) for line, start in zip(warnings, says, strict=True))


@pytest.mark.parametrize("height", [2.0, 0.4])
def test_a_robot_on_a_mocap_body_begins_where_keyframe_home_has_it(height: float) -> None:
    model = mujoco.MjModel.from_xml_string(HANGING.replace('mpos="0 0 2"', f'mpos="0 0 {height}"'))
    look = Plausibility(robot_only(RobotConfig()), model, [], Starts(default=model.key_qpos[0]), lambda: None)
    buried = "--env.robot, keyframe home: crane begins 0.33 m in the ground; give another height"
    assert [*look.find_doubtful_starts()] == ([] if height == 2.0 else [buried])
