"""What the tasks share in which legs walk at a commanded velocity: schedule, command, observations, events, terrain."""

from dataclasses import replace
from typing import Any, TypedDict

from mjtrain import CommandTerm, EnvConfig, EventTerm, ObservationTerm, TerrainConfig, mdp
from mjtrain.mdp import events, gait, observations, randomization, terminations, velocity

BASE = "base"


class Gait(TypedDict):
    """Parameters that the terms of a gait share."""

    frequency_hz: float
    offsets: tuple[float, ...]
    duty: float
    command: str
    velocity_sensor: str | None


def make_observations(joints: tuple[str, ...], schedule: Gait) -> dict[str, ObservationTerm]:
    """What the actor sees."""
    clock = mdp.observation(
        gait.clock,
        frequency_hz=schedule["frequency_hz"],
        command=schedule["command"],
        velocity_sensor=schedule["velocity_sensor"],
    )
    return {
        "base_velocity": mdp.observation(observations.sensor, sensor="base_velocity").replace(noise=0.1, scale=2.0),
        "turning": mdp.observation(observations.sensor, sensor="base_angular_velocity").replace(noise=0.2, scale=0.5),
        "up": mdp.observation(observations.sensor, sensor="up").replace(noise=0.05),
        "command": mdp.observation(observations.command, command="velocity").replace(scale=2.0),
        "clock": clock,
        "joint_positions": mdp.observation(observations.joint_pos_rel, joints=joints).replace(noise=0.01, scale=2.0),
        "joint_velocities": mdp.observation(observations.joint_velocities, joints=joints).replace(noise=0.5, scale=0.1),
        "last_action": mdp.observation(observations.last_action).replace(scale=0.5),
    }


def make_command(*, left: float, speed: float, turn: float, **drawn: Any) -> CommandTerm:
    """The velocity command: drawn every few seconds, and approached no faster than a body can accelerate.

    Args:
        left: Largest speed to the side that a user may steer, in m/s.
        speed: Largest speed, in m/s.
        turn: Largest turning rate, in rad/s.
        **drawn: Further parameters of `velocity.velocity_command`.
    """
    term = mdp.command(velocity.velocity_command, speed=speed, turn=turn, **drawn).replace(
        resampling_s=(2.5, 5.0),
        errors={
            "planar": mdp.error(velocity.lin_vel_xy_error, "m/s", command="velocity", sensor="base_velocity"),
            "turn": mdp.error(velocity.ang_vel_z_error, "rad/s", command="velocity", sensor="base_angular_velocity"),
        },
        controls={"ahead": (-speed, speed), "left": (-left, left), "turn": (-turn, turn)},
        steer=velocity.steer,
    )
    return mdp.refined(
        term, velocity.approach, joint=BASE, gain=1.0, turn=turn, acceleration=2.0, turn_acceleration=4.0
    )


def make_events(
    joints: tuple[str, ...],
    *,
    feet: str,
    trunk: str,
    center_m: float,
    above_m: tuple[float, float],
    pushed_every_s: tuple[float, float],
) -> dict[str, EventTerm]:
    """Randomisation, resets and pushes.

    Args:
        joints: Regular expressions over the joints that walk.
        feet: Regular expression over the geoms that touch the ground.
        trunk: Body that carries a load.
        center_m: Largest offset of the trunk's center of mass along each axis.
        above_m: Height above its standing height at which a robot starts, so that no foot starts inside the ground.
        pushed_every_s: Time between pushes.
    """
    return {
        "friction": mdp.startup_event(randomization.friction, geoms=(feet,), sliding=(0.5, 1.2)),
        "payload": mdp.startup_event(randomization.mass, bodies=(trunk,), factor=(0.9, 1.2)),
        "center_of_mass": mdp.startup_event(
            randomization.center_of_mass, bodies=(trunk,), offset_m=(-center_m, center_m)
        ),
        "gains": mdp.startup_event(randomization.actuator_gains, actuators=(".*",), factor=(0.9, 1.1)),
        "pose": mdp.reset_event(
            events.reset_root_state_uniform,
            joint=BASE,
            xy=(-0.5, 0.5),
            z=above_m,
            yaw=(-3.1416, 3.1416),
            linear_velocity=(-0.3, 0.3),
            angular_velocity=(-0.3, 0.3),
        ),
        "joints": mdp.reset_event(events.reset_joints_by_scale, joints=joints, factor=(0.85, 1.15)),
        "push": mdp.interval_event(
            events.push_by_setting_velocity, pushed_every_s, joint=BASE, linear=0.5, angular=0.3
        ),
    }


def on_rough_ground(
    env: EnvConfig,
    ahead: tuple[float, float, int],
    height_m: float,
    initial_levels: tuple[float, float] = (0.0, 3.0),
    step: float = 2.0,
) -> EnvConfig:
    """Put a task of flat ground on slopes, stairs, bumps and blocks, which get harder as the robot improves.

    Args:
        env: The MDP on flat ground.
        ahead: First and last point of the height scan ahead of the base, in m, and the number of points.
        height_m: Height of the standing base.
        initial_levels: Bounds of the levels on which worlds begin.
        step: Levels that a world rises by.
    """
    scan = mdp.observation(observations.height_scan, joint=BASE, x=ahead, y=(-0.3, 0.3, 5), offset=height_m)
    scan = scan.replace(noise=0.02, clip=(-0.5, 0.5))
    # A robot that keeps its heading and its command can leave its patch, and so show that it masters it.
    term = env.commands["velocity"]
    term = term.replace(params={**term.params, "heading_fraction": 1.0}, resampling_s=(10.0, 10.0))
    level = mdp.curriculum(velocity.terrain_level, joint=BASE, command="velocity", far_m=3.5, step=step)
    edge = mdp.truncation(terminations.terrain_out_of_bounds, joint=BASE, margin_m=0.5)
    return replace(
        env,
        robot=replace(env.robot, timestep=0.005),  # no quadruped learned to walk on it by 10 ms (docs/speedrun.md)
        decimation=4,
        episode_length_s=10.0,
        commands={"velocity": term},
        terrain=TerrainConfig(kind="generated"),
        observations={
            "actor": {**env.observations["actor"], "height_scan": scan},
            "critic": {**env.observations["critic"], "height_scan": scan.replace(noise=0.0)},
        },
        events={**env.events, "patch": mdp.reset_event(events.spawn_on_patch, joint=BASE, curriculum="terrain")},
        curriculum={**env.curriculum, "terrain": level.replace(initial=initial_levels, bounds=(0.0, 9.0))},
        terminations={**env.terminations, "out_of_bounds": edge},
    )
