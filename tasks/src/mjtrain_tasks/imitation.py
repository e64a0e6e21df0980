"""What the tasks share in which a robot imitates a reference motion."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mjtrain import (
    ActionTerm,
    AgentConfig,
    CommandTerm,
    EnvConfig,
    EventTerm,
    ObservationTerm,
    RewardTerm,
    RobotConfig,
    TerminationTerm,
    TerrainConfig,
)
from mjtrain.mdp import (
    command,
    curriculum,
    error,
    events,
    interval_event,
    observation,
    observations,
    randomization,
    refined,
    reset_event,
    reward,
    rewards,
    startup_event,
    success,
    termination,
    terminations,
    tracking,
    truncation,
)
from mjtrain_tasks import quadruped_velocity
from mjtrain_tasks.walking import BASE

_STEP_S = 0.02
_MOTION: dict[str, Any] = {"command": "motion"}


@dataclass(frozen=True, kw_only=True)
class Imitator:
    """A robot that imitates, and how exactly."""

    robot: RobotConfig
    """In physics steps of 10 ms."""
    action: str
    """Name of the action term."""
    joints: tuple[str, ...]
    """Regular expressions over the joints and their actuators."""
    action_scale: float
    anchor_body: str
    bodies: tuple[str, ...]
    """Regular expressions over the tracked bodies."""
    feet: tuple[str, ...]
    """Those among them whose heights end an episode."""
    hands: tuple[str, ...] = ()
    """Likewise."""
    soles: tuple[str, ...]
    """Geoms whose friction differs between worlds."""
    distance_m: float
    """Distance of bodies from the reference at which a reward is 1/e."""
    height_m: float
    """Difference in height of the anchor body above which an episode fails."""
    tilt: float
    """Difference in the vertical's component along the anchor body above which it fails."""
    end_height_m: float
    """Difference in height of a foot or hand above which it fails."""
    far_m: float
    """Distance of the anchor body above which it fails."""
    uniform_share: float = 0.1
    """Fraction of episodes that start in any frame, and not where episodes fail."""


def make_env(imitator: Imitator, file: Path) -> EnvConfig:
    """The MDP: 50 env steps per second, until the end of the motion's clip or for 10 s."""
    actor = _make_observations(imitator)
    privileged = {"bodies": observation(tracking.robot_body_pos_b, **_MOTION).replace(scale=3.0)}
    return EnvConfig(
        robot=imitator.robot,
        decimation=2,
        episode_length_s=10.0,
        terrain=TerrainConfig(kind="flat"),
        actions={
            imitator.action: ActionTerm(
                actuators=imitator.joints,
                scale=imitator.action_scale,
                clip=(-4.0, 4.0),
                base=tracking.motion_controls,
                base_params={**_MOTION, "actuators": imitator.joints, "share": 0.0},
            )
        },
        commands={"motion": _make_command(imitator, file)},
        observations={
            "actor": actor,
            "critic": {name: term.replace(noise=0.0) for name, term in actor.items()} | privileged,
        },
        rewards=_make_rewards(imitator.distance_m),
        terminations=_make_terminations(imitator),
        successes={"completed": success(tracking.motion_completed)},
        events=_make_events(imitator),
        curriculum={"sampling": curriculum(tracking.adaptive_sampling, **_MOTION)},
    )


def _make_observations(imitator: Imitator) -> dict[str, ObservationTerm]:
    joints = imitator.joints
    return {
        "targets": observation(tracking.motion_joint_targets, **_MOTION).replace(scale=0.5),
        "anchor_position": observation(tracking.motion_anchor_pos_b, **_MOTION).replace(noise=0.01, scale=10.0),
        "anchor_axes": observation(tracking.motion_anchor_ori_b, **_MOTION).replace(noise=0.02, scale=2.0),
        "base_velocity": observation(observations.sensor, sensor="base_velocity").replace(noise=0.1, scale=2.0),
        "turning": observation(observations.sensor, sensor="base_angular_velocity").replace(noise=0.2, scale=0.5),
        "up": observation(observations.sensor, sensor="up").replace(noise=0.05),
        "joint_positions": observation(observations.joint_pos_rel, joints=joints).replace(noise=0.01, scale=2.0),
        "joint_velocities": observation(observations.joint_velocities, joints=joints).replace(noise=0.5, scale=0.1),
        "last_action": observation(observations.last_action).replace(scale=0.5),
    }


def _make_rewards(distance_m: float) -> dict[str, RewardTerm]:
    return {
        "anchor_position": reward(tracking.motion_global_anchor_position_error_exp, 1.0, std=distance_m, **_MOTION),
        "anchor_orientation": reward(tracking.motion_global_anchor_orientation_error_exp, 0.5, std=0.3, **_MOTION),
        "body_position": reward(tracking.motion_relative_body_position_error_exp, 1.0, std=distance_m, **_MOTION),
        "body_orientation": reward(tracking.motion_relative_body_orientation_error_exp, 1.0, std=0.4, **_MOTION),
        "body_velocity": reward(tracking.motion_global_body_linear_velocity_error_exp, 1.0, std=0.7, **_MOTION),
        "body_turning": reward(tracking.motion_global_body_angular_velocity_error_exp, 1.0, std=3.0, **_MOTION),
        "failed": reward(rewards.is_terminated, -50.0),  # -1 per failure
        "action_rate": reward(rewards.action_rate, -0.02),
    }


def _make_terminations(imitator: Imitator) -> dict[str, TerminationTerm]:
    low = {"threshold": imitator.end_height_m, **_MOTION}
    hands = {"hands_height": termination(tracking.bad_motion_body_pos_z_only, bodies=imitator.hands, **low)}
    return {
        "time_out": truncation(terminations.time_out),
        "clip_ended": truncation(tracking.motion_ended, **_MOTION),
        "anchor_height": termination(tracking.bad_anchor_pos_z_only, threshold=imitator.height_m, **_MOTION),
        "anchor_tilt": termination(tracking.bad_anchor_ori, threshold=imitator.tilt, **_MOTION),
        "feet_height": termination(tracking.bad_motion_body_pos_z_only, bodies=imitator.feet, **low),
        "far": termination(tracking.bad_anchor_pos, threshold=imitator.far_m, **_MOTION),
        **(hands if imitator.hands else {}),
    }


def _make_events(imitator: Imitator) -> dict[str, EventTerm]:
    return {
        "friction": startup_event(randomization.friction, geoms=imitator.soles, sliding=(0.5, 1.2)),
        "start": reset_event(
            tracking.reset_to_motion,
            xy=(-0.02, 0.02),
            z=(0.0, 0.01),
            tilt=(-0.05, 0.05),
            yaw=(-0.1, 0.1),
            linear_velocity=(-0.2, 0.2),
            angular_velocity=(-0.3, 0.3),
            position=(-0.05, 0.05),
            **_MOTION,
        ),
        "push": interval_event(events.push_by_setting_velocity, (2.0, 5.0), joint=BASE, linear=0.3, angular=0.3),
    }


def _make_command(imitator: Imitator, file: Path) -> CommandTerm:
    """The motion: episodes start where they fail often, and in evaluations at the first frame."""
    drawn = command(
        tracking.motion_command,
        file=str(file),
        anchor_body=imitator.anchor_body,
        bodies=imitator.bodies,
        uniform_share=imitator.uniform_share,
    ).replace(
        before_reset=True,
        evaluated_params={"sampling": "start"},
        errors={
            name: replace(term, settling_s=_STEP_S)  # without the start itself
            for name, term in {
                "mpkpe": error(tracking.mpkpe, "m", **_MOTION),
                "r_mpkpe": error(tracking.r_mpkpe, "m", **_MOTION),
                "joint_vel": error(tracking.joint_vel_error, "rad/s", **_MOTION),
                "ee_pos": error(tracking.ee_pos_error, "m", bodies=(*imitator.feet, *imitator.hands), **_MOTION),
                "ee_ori": error(tracking.ee_ori_error, "rad", bodies=(*imitator.feet, *imitator.hands), **_MOTION),
            }.items()
        },
    )
    return refined(drawn, tracking.follow_motion)


def make_agent() -> AgentConfig:
    """PPO with networks that are symmetric between left and right: the mirror image of a motion is one, too."""
    return quadruped_velocity.make_agent(hidden_dims=(256, 128), controller="", init_std=0.5, gamma=0.97)
