"""Quadruped-Track: imitate a reference motion."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mjtrain import (
    ActionTerm,
    AgentConfig,
    CommandTerm,
    DistributionConfig,
    EnvConfig,
    ModelConfig,
    PpoConfig,
    RobotConfig,
    SymmetryConfig,
    TaskConfig,
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
from mjtrain_tasks.models import QUADRUPED
from mjtrain_tasks.quadruped_velocity import BASE, JOINTS, MIRROR

CLIPS = Path(__file__).parent / "clips"
"""Motions that come with the task: sit, bow, paw and trot."""

FEET = (".*_foot",)
STEP_S = 0.02


def make_task() -> TaskConfig:
    """Imitate a reference motion: by default a recorded trot, else --env.commands.motion.params.file FILE.

    Trains in: about 3 minutes, which is an estimate, on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=make_agent(), num_envs=256, num_envs_gpu=4096, max_iterations=150)


def make_env(file: Path = CLIPS / "trot.npz") -> EnvConfig:
    """The MDP: 50 env steps per second, until the end of the clip or for 10 s.

    Args:
        file: The motion.
    """
    motion: dict[str, Any] = {"command": "motion"}
    actor = {
        "targets": observation(tracking.motion_joint_targets, **motion).replace(scale=0.5),
        "anchor_position": observation(tracking.motion_anchor_pos_b, **motion).replace(noise=0.01, scale=10.0),
        "anchor_axes": observation(tracking.motion_anchor_ori_b, **motion).replace(noise=0.02, scale=2.0),
        "base_velocity": observation(observations.sensor, sensor="base_velocity").replace(noise=0.1, scale=2.0),
        "turning": observation(observations.sensor, sensor="base_angular_velocity").replace(noise=0.2, scale=0.5),
        "up": observation(observations.sensor, sensor="up").replace(noise=0.05),
        "joint_positions": observation(observations.joint_pos_rel, joints=JOINTS).replace(noise=0.01, scale=2.0),
        "joint_velocities": observation(observations.joint_velocities, joints=JOINTS).replace(noise=0.5, scale=0.1),
        "last_action": observation(observations.last_action).replace(scale=0.5),
    }
    privileged = {"bodies": observation(tracking.robot_body_pos_b, **motion).replace(scale=3.0)}
    return EnvConfig(
        robot=RobotConfig(file=str(QUADRUPED), timestep=0.01, mirror=MIRROR),
        decimation=2,
        episode_length_s=10.0,
        terrain=TerrainConfig(kind="flat"),
        actions={
            "legs": ActionTerm(
                actuators=JOINTS,
                scale=0.3,
                clip=(-4.0, 4.0),
                base=tracking.motion_controls,
                base_params={**motion, "actuators": JOINTS, "share": 0.0},
            )
        },
        commands={"motion": make_command(file)},
        observations={
            "actor": actor,
            "critic": {name: term.replace(noise=0.0) for name, term in actor.items()} | privileged,
        },
        rewards={
            "anchor_position": reward(tracking.motion_global_anchor_position_error_exp, 1.0, std=0.1, **motion),
            "anchor_orientation": reward(tracking.motion_global_anchor_orientation_error_exp, 0.5, std=0.3, **motion),
            "body_position": reward(tracking.motion_relative_body_position_error_exp, 1.0, std=0.1, **motion),
            "body_orientation": reward(tracking.motion_relative_body_orientation_error_exp, 1.0, std=0.4, **motion),
            "body_velocity": reward(tracking.motion_global_body_linear_velocity_error_exp, 1.0, std=0.7, **motion),
            "body_turning": reward(tracking.motion_global_body_angular_velocity_error_exp, 1.0, std=3.0, **motion),
            "failed": reward(rewards.is_terminated, -50.0),  # -1 per failure
            "action_rate": reward(rewards.action_rate, -0.02),
        },
        terminations={
            "time_out": truncation(terminations.time_out),
            "clip_ended": truncation(tracking.motion_ended, **motion),
            "anchor_height": termination(tracking.bad_anchor_pos_z_only, threshold=0.1, **motion),
            "anchor_tilt": termination(tracking.bad_anchor_ori, threshold=0.4, **motion),
            "feet_height": termination(tracking.bad_motion_body_pos_z_only, bodies=FEET, threshold=0.12, **motion),
            "far": termination(tracking.bad_anchor_pos, threshold=0.3, **motion),
        },
        successes={"completed": success(tracking.motion_completed)},
        events={
            "friction": startup_event(randomization.friction, geoms=FEET, sliding=(0.5, 1.2)),
            "start": reset_event(
                tracking.reset_to_motion,
                xy=(-0.02, 0.02),
                z=(0.0, 0.01),
                tilt=(-0.05, 0.05),
                yaw=(-0.1, 0.1),
                linear_velocity=(-0.2, 0.2),
                angular_velocity=(-0.3, 0.3),
                position=(-0.05, 0.05),
                **motion,
            ),
            "push": interval_event(events.push_by_setting_velocity, (2.0, 5.0), joint=BASE, linear=0.3, angular=0.3),
        },
        curriculum={"sampling": curriculum(tracking.adaptive_sampling, **motion)},
    )


def make_command(file: Path) -> CommandTerm:
    """The motion: episodes start where they fail often, and in evaluations at the first frame."""
    drawn = command(
        tracking.motion_command, file=str(file), anchor_body="trunk", bodies=("trunk", ".*_(hip|thigh|calf|foot)")
    ).replace(
        before_reset=True,
        evaluated_params={"sampling": "start"},
        errors={
            name: replace(error(function, unit, command="motion"), settling_s=STEP_S)  # without the start itself
            for name, function, unit in (
                ("mpkpe", tracking.mpkpe, "m"),
                ("r_mpkpe", tracking.r_mpkpe, "m"),
                ("joint_vel", tracking.joint_vel_error, "rad/s"),
            )
        }
        | {
            "ee_pos": replace(error(tracking.ee_pos_error, "m", command="motion", bodies=FEET), settling_s=STEP_S),
            "ee_ori": replace(error(tracking.ee_ori_error, "rad", command="motion", bodies=FEET), settling_s=STEP_S),
        },
    )
    return refined(drawn, tracking.follow_motion)


def make_agent() -> AgentConfig:
    """PPO with networks that are symmetric between left and right: the mirror image of a motion is one, too."""
    network = ModelConfig(hidden_dims=(256, 128), activation="relu", obs_normalization=False)
    return AgentConfig(
        actor=replace(network, distribution_cfg=DistributionConfig(init_std=0.5)),
        critic=network,
        algorithm=PpoConfig(
            entropy_coef=0.002,
            desired_kl=0.02,
            gamma=0.97,
            symmetry_cfg=SymmetryConfig(use_equivariant_networks=True),
        ),
    )
