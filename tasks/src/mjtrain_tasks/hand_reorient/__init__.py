"""Hand-Reorient-Cube: turn a cube in the palm of a hand to one commanded orientation after the other."""

from dataclasses import replace
from typing import Any

from mjtrain import (
    ActionTerm,
    AgentConfig,
    DistributionConfig,
    EnvConfig,
    ModelConfig,
    PpoConfig,
    TaskConfig,
    WarpConfig,
    mdp,
)
from mjtrain.mdp import events, objects, observations, randomization, rewards, terminations
from mjtrain_tasks.hand_reorient.progress import orientation, progress
from mjtrain_tasks.models import HAND

CUBE = "cube"
JOINTS = ("(FF|MF|RF|LF|TH|WR)J.",)
TIPS = tuple(f"{finger}_tip_position" for finger in ("FF", "MF", "RF", "LF", "TH"))
TOUCHES = tuple(f"{finger}_touch" for finger in ("FF", "MF", "RF", "LF", "TH"))
PALM = "palm_position"
TOLERANCE = 0.4  # rad, of a goal
MOTORS: dict[str, Any] = {"from_home": True, "relative": True, "delay": (0, 1), "noise": 0.02}
"""What all actions have in common: they change the targets of the joints; delay in env steps, noise in rad."""


def make_task() -> TaskConfig:
    """Turn a cube in the palm of a hand with 24 joints to one commanded orientation after the other.

    An episode ends 8 s after the last goal, as in Isaac Gym's ShadowHand. It reaches two goals on the way after 40
    minutes, and five in the end; see docs/hands.md.

    Trains in: about 90 minutes on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=make_agent(), num_envs=512, num_envs_gpu=8192, max_iterations=1700)


def make_env() -> EnvConfig:
    """The MDP: 12.5 env steps per second, with goal after goal.

    An episode ends when the cube is lost, when a goal is not reached within 8 s, or after 60 s.
    """
    goal = {"command": "goal", "object": CUBE}
    state = {
        "joint_positions": mdp.observation(observations.joint_pos_rel, joints=JOINTS).replace(noise=0.01, scale=2.0),
        "joint_velocities": mdp.observation(observations.joint_velocities, joints=JOINTS).replace(noise=0.2, scale=0.2),
        "fingertips": mdp.observation(observations.sensors, sensors=TIPS).replace(noise=0.002, scale=20.0),
        "cube_position": mdp.observation(objects.position_in, object=CUBE, position_sensor=PALM).replace(
            noise=0.003, scale=30.0
        ),
        "cube_orientation": mdp.observation(objects.cube_orientation_in, object=CUBE).replace(noise=0.02),
        "cube_velocity": mdp.observation(objects.linear_velocity_in, object=CUBE).replace(noise=0.02, scale=5.0),
        "cube_turning": mdp.observation(objects.angular_velocity_in, object=CUBE).replace(noise=0.1, scale=0.3),
        "rotation_to_goal": mdp.observation(objects.remaining_rotation, **goal).replace(noise=0.02),
        "axis_to_goal": mdp.observation(objects.orientation_error, **goal).replace(noise=0.02),
        "targets": mdp.observation(observations.ctrl_rel),
        "last_action": mdp.observation(observations.last_action).replace(clip=(-1.0, 1.0)),
    }
    privileged = {"touch": mdp.observation(observations.sensors, sensors=TOUCHES).replace(scale=0.3, clip=(0.0, 3.0))}
    return EnvConfig(
        robot=str(HAND),
        warp=WarpConfig(nconmax=48, njmax=192),  # 16 and 78 by benchmarks/buffers.py, and the guess is 64 rows
        decimation=8,
        episode_length_s=60.0,
        actions={
            "wrist": ActionTerm(actuators=("WRJ.",), scale=0.05, **MOTORS),
            "spread": ActionTerm(actuators=("(FF|MF|RF|LF)J4", "LFJ5"), scale=0.1, **MOTORS),
            "proximal": ActionTerm(actuators=("(FF|MF|RF|LF)J3",), scale=0.2, **MOTORS),
            "coupled": ActionTerm(actuators=("(FF|MF|RF|LF)J0",), scale=0.3, **MOTORS),
            "thumb": ActionTerm(actuators=("THJ[1245]",), scale=0.2, **MOTORS),
            "thumb_roll": ActionTerm(actuators=("THJ3",), scale=0.05, **MOTORS),
        },
        commands={
            "goal": mdp.command(objects.orientation_command).replace(
                resampling_s=(1000.0, 1000.0),
                resample_on="goal",
                errors={"angle": mdp.error(objects.angle, "rad", **goal)},
                steer=objects.steer_orientation,
                controls={"roll": (-3.14, 3.14), "pitch": (-1.57, 1.57), "yaw": (-3.14, 3.14)},
                is_pose=True,
                object=CUBE,
            ),
            "before": mdp.command(orientation, object=CUBE).replace(resampling_s=(0.0, 0.0)),
        },
        successes={
            "goal": mdp.success(objects.reached, command="goal", object=CUBE, tolerance=TOLERANCE).replace(
                measure="count"
            )
        },
        observations={
            "actor": state,
            "critic": {name: term.replace(noise=0.0) for name, term in state.items()} | privileged,
        },
        rewards={
            "progress": mdp.reward(progress, 1.0, **goal, before="before"),
            "goal": mdp.reward(rewards.is_successful, 12.5, success="goal"),  # 1 per goal
            "dropped": mdp.reward(rewards.is_terminated, -3.125),  # -0.25 per drop
            "action_rate": mdp.reward(rewards.action_rate, -0.0005),
            "speed": mdp.reward(rewards.joint_speed, -0.00005, joints=JOINTS),
        },
        terminations={
            "time_out": mdp.truncation(terminations.time_out),
            "goal_time_out": mdp.truncation(terminations.success_time_out, success="goal", after_s=8.0),
            "dropped": mdp.termination(objects.strayed, object=CUBE, position_sensor=PALM, beyond_m=0.1),
        },
        events={
            "friction": mdp.startup_event(randomization.friction, geoms=("cube",), sliding=(0.8, 1.2)),
            "mass": mdp.startup_event(randomization.mass, bodies=("cube",), factor=(0.8, 1.2)),
            "gains": mdp.startup_event(randomization.actuator_gains, actuators=(".*",), factor=(0.9, 1.1)),
            "place": mdp.reset_event(events.reset_root_state_uniform, joint=CUBE, xy=(-0.01, 0.01), z=(0.02, 0.03)),
            "orientation": mdp.reset_event(objects.reset_orientation, object=CUBE),
        },
    )


def make_agent() -> AgentConfig:
    """PPO; the critic also sees what the fingertips touch, and no noise.

    What a turn gains in an env step is less than what noise of the actions does to the cube, so an update takes many
    samples and changes little.

    Observations are scaled by their terms, see `quadruped_velocity.make_agent`.
    """
    network = ModelConfig(hidden_dims=(256, 128), activation="relu", obs_normalization=False)
    return AgentConfig(
        num_steps_per_env=32,
        save_interval=50,
        actor=replace(network, distribution_cfg=DistributionConfig(init_std=0.6)),
        critic=network,
        algorithm=PpoConfig(learning_rate=3e-4, entropy_coef=0.0, desired_kl=0.015, gamma=0.99),
    )
