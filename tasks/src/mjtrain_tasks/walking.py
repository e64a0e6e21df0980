"""What the tasks share in which legs walk at a commanded velocity: schedule, observations and rough ground."""

from dataclasses import replace
from typing import TypedDict

from mjtrain import EnvConfig, ObservationTerm, TerrainConfig
from mjtrain.mdp import (
    curriculum,
    events,
    gait,
    observation,
    observations,
    reset_event,
    terminations,
    truncation,
    velocity,
)

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
    clock = observation(
        gait.clock,
        frequency_hz=schedule["frequency_hz"],
        command=schedule["command"],
        velocity_sensor=schedule["velocity_sensor"],
    )
    return {
        "base_velocity": observation(observations.sensor, sensor="base_velocity").replace(noise=0.1, scale=2.0),
        "turning": observation(observations.sensor, sensor="base_angular_velocity").replace(noise=0.2, scale=0.5),
        "up": observation(observations.sensor, sensor="up").replace(noise=0.05),
        "command": observation(observations.command, command="velocity").replace(scale=2.0),
        "clock": clock,
        "joint_positions": observation(observations.joint_pos_rel, joints=joints).replace(noise=0.01, scale=2.0),
        "joint_velocities": observation(observations.joint_velocities, joints=joints).replace(noise=0.5, scale=0.1),
        "last_action": observation(observations.last_action).replace(scale=0.5),
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
    scan = observation(observations.height_scan, joint=BASE, x=ahead, y=(-0.3, 0.3, 5), offset=height_m)
    scan = scan.replace(noise=0.02, clip=(-0.5, 0.5))
    # A robot that keeps its heading and its command can leave its patch, and so show that it masters it.
    term = env.commands["velocity"]
    term = term.replace(params={**term.params, "heading_fraction": 1.0}, resampling_s=(10.0, 10.0))
    level = curriculum(velocity.terrain_level, joint=BASE, command="velocity", far_m=3.5, step=step)
    edge = truncation(terminations.terrain_out_of_bounds, joint=BASE, margin_m=0.5)
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
        events={**env.events, "patch": reset_event(events.spawn_on_patch, joint=BASE, curriculum="terrain")},
        curriculum={**env.curriculum, "terrain": level.replace(initial=initial_levels, bounds=(0.0, 9.0))},
        terminations={**env.terminations, "out_of_bounds": edge},
    )
