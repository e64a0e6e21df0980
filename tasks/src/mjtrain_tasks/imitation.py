"""What the tasks share in which a robot imitates a reference motion."""

from pathlib import Path
from typing import Any

from mjtrain import ActionTerm, AgentConfig, CommandTerm, EnvConfig, RobotConfig, TerrainConfig, mdp
from mjtrain.mdp import events, observations, randomization, rewards, terminations, tracking
from mjtrain_tasks import quadruped_velocity
from mjtrain_tasks.walking import BASE

_STEP_S = 0.02
_MOTION: dict[str, Any] = {"command": "motion"}


def make_env(
    file: Path,
    *,
    robot: RobotConfig,
    action: str,
    joints: tuple[str, ...],
    action_scale: float,
    anchor_body: str,
    bodies: tuple[str, ...],
    feet: tuple[str, ...],
    hands: tuple[str, ...] = (),
    soles: tuple[str, ...],
    distance_m: float,
    height_m: float,
    tilt: float,
    end_height_m: float,
    far_m: float,
    uniform_share: float = 0.1,
) -> EnvConfig:
    """The MDP: 50 env steps per second, until the end of the motion's clip or for 10 s.

    Args:
        robot: In physics steps of 10 ms.
        action: Name of the action term.
        joints: Regular expressions over the joints and their actuators.
        action_scale: Change of a joint's target for an action of 1, in rad.
        anchor_body: The body that is to be where the reference has it; the others are compared relative to it.
        bodies: Regular expressions over the tracked bodies.
        feet: Those among them whose heights end an episode.
        hands: Likewise.
        soles: Geoms whose friction differs between worlds.
        distance_m: Distance of bodies from the reference at which a reward is 1/e.
        height_m: Difference in height of the anchor body above which an episode fails.
        tilt: Difference in the vertical's component along the anchor body above which it fails.
        end_height_m: Difference in height of a foot or hand above which it fails.
        far_m: Distance of the anchor body above which it fails.
        uniform_share: Fraction of episodes that start in any frame, and not where episodes fail.
    """
    actor = {
        "targets": mdp.observation(tracking.motion_joint_targets, **_MOTION).replace(scale=0.5),
        "anchor_position": mdp.observation(tracking.motion_anchor_pos_b, **_MOTION).replace(noise=0.01, scale=10.0),
        "anchor_axes": mdp.observation(tracking.motion_anchor_ori_b, **_MOTION).replace(noise=0.02, scale=2.0),
        "base_velocity": mdp.observation(observations.sensor, sensor="base_velocity").replace(noise=0.1, scale=2.0),
        "turning": mdp.observation(observations.sensor, sensor="base_angular_velocity").replace(noise=0.2, scale=0.5),
        "up": mdp.observation(observations.sensor, sensor="up").replace(noise=0.05),
        "joint_positions": mdp.observation(observations.joint_pos_rel, joints=joints).replace(noise=0.01, scale=2.0),
        "joint_velocities": mdp.observation(observations.joint_velocities, joints=joints).replace(noise=0.5, scale=0.1),
        "last_action": mdp.observation(observations.last_action).replace(scale=0.5),
    }
    privileged = {"bodies": mdp.observation(tracking.robot_body_pos_b, **_MOTION).replace(scale=3.0)}
    low = {"threshold": end_height_m, **_MOTION}
    terms = {
        "time_out": mdp.truncation(terminations.time_out),
        "clip_ended": mdp.truncation(tracking.motion_ended, **_MOTION),
        "anchor_height": mdp.termination(tracking.bad_anchor_pos_z_only, threshold=height_m, **_MOTION),
        "anchor_tilt": mdp.termination(tracking.bad_anchor_ori, threshold=tilt, **_MOTION),
        "feet_height": mdp.termination(tracking.bad_motion_body_pos_z_only, bodies=feet, **low),
        "far": mdp.termination(tracking.bad_anchor_pos, threshold=far_m, **_MOTION),
    }
    if hands:
        terms["hands_height"] = mdp.termination(tracking.bad_motion_body_pos_z_only, bodies=hands, **low)
    motion = mdp.command(
        tracking.motion_command, file=str(file), anchor_body=anchor_body, bodies=bodies, uniform_share=uniform_share
    )
    return EnvConfig(
        robot=robot,
        decimation=2,
        episode_length_s=10.0,
        terrain=TerrainConfig(kind="flat"),
        actions={
            action: ActionTerm(
                actuators=joints,
                scale=action_scale,
                clip=(-4.0, 4.0),
                base=tracking.motion_controls,
                base_params={**_MOTION, "actuators": joints, "share": 0.0},
            )
        },
        commands={"motion": _start_and_follow(motion, ends=(*feet, *hands))},
        observations={
            "actor": actor,
            "critic": {name: term.replace(noise=0.0) for name, term in actor.items()} | privileged,
        },
        rewards={
            "anchor_position": mdp.reward(
                tracking.motion_global_anchor_position_error_exp, 1.0, std=distance_m, **_MOTION
            ),
            "anchor_orientation": mdp.reward(
                tracking.motion_global_anchor_orientation_error_exp, 0.5, std=0.3, **_MOTION
            ),
            "body_position": mdp.reward(
                tracking.motion_relative_body_position_error_exp, 1.0, std=distance_m, **_MOTION
            ),
            "body_orientation": mdp.reward(
                tracking.motion_relative_body_orientation_error_exp, 1.0, std=0.4, **_MOTION
            ),
            "body_velocity": mdp.reward(tracking.motion_global_body_linear_velocity_error_exp, 1.0, std=0.7, **_MOTION),
            "body_turning": mdp.reward(tracking.motion_global_body_angular_velocity_error_exp, 1.0, std=3.0, **_MOTION),
            "failed": mdp.reward(rewards.is_terminated, -50.0),  # -1 per failure
            "action_rate": mdp.reward(rewards.action_rate, -0.02),
        },
        terminations=terms,
        successes={"completed": mdp.success(tracking.motion_completed)},
        events={
            "friction": mdp.startup_event(randomization.friction, geoms=soles, sliding=(0.5, 1.2)),
            "start": mdp.reset_event(
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
            "push": mdp.interval_event(
                events.push_by_setting_velocity, (2.0, 5.0), joint=BASE, linear=0.3, angular=0.3
            ),
        },
        curriculum={"sampling": mdp.curriculum(tracking.adaptive_sampling, **_MOTION)},
    )


def _start_and_follow(motion: CommandTerm, ends: tuple[str, ...]) -> CommandTerm:
    """Let episodes start where the motion is drawn, in evaluations at its first frame, and follow it from there."""
    errors = {
        "mpkpe": mdp.error(tracking.mpkpe, "m", **_MOTION),
        "r_mpkpe": mdp.error(tracking.r_mpkpe, "m", **_MOTION),
        "joint_vel": mdp.error(tracking.joint_vel_error, "rad/s", **_MOTION),
        "ee_pos": mdp.error(tracking.ee_pos_error, "m", bodies=ends, **_MOTION),
        "ee_ori": mdp.error(tracking.ee_ori_error, "rad", bodies=ends, **_MOTION),
    }
    drawn = motion.replace(
        before_reset=True,
        evaluated_params={"sampling": "start"},
        errors={name: term.replace(settling_s=_STEP_S) for name, term in errors.items()},  # without the start itself
    )
    return mdp.refined(drawn, tracking.follow_motion)


def make_agent() -> AgentConfig:
    """PPO with networks that are symmetric between left and right: the mirror image of a motion is one, too."""
    return quadruped_velocity.make_agent(hidden_dims=(256, 128), controller="", init_std=0.5, gamma=0.97)
