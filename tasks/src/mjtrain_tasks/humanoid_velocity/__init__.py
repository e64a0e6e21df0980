"""Humanoid-Velocity: walk on two legs at the velocity, in the direction and with the turning rate of a command."""

from dataclasses import replace

from mjtrain import (
    ActionTerm,
    AgentConfig,
    EnvConfig,
    MirrorConfig,
    RewardTerm,
    RobotConfig,
    TaskConfig,
    TerrainConfig,
    mdp,
)
from mjtrain.mdp import gait, observations, randomization, rewards, root, terminations, velocity
from mjtrain_tasks import quadruped_velocity
from mjtrain_tasks.models import HUMANOID
from mjtrain_tasks.walking import BASE, Gait, make_command, make_events, make_observations, on_rough_ground

JOINTS = (".*_joint",)
UPPER_BODY = ("waist_.*_joint", ".*_(shoulder|elbow|wrist)_.*joint")
FOOT_POSITIONS = ("left_foot_position", "right_foot_position")
FOOT_VELOCITIES = ("left_foot_velocity", "right_foot_velocity")
FOOT_CONTACTS = ("left_foot_contact", "right_foot_contact")
STANDING_HEIGHT_M = 0.758
WEIGHT_N = 327.0
MIRROR = MirrorConfig(names={"left_(.*)": r"right_\1"})
SPEED = 1.0  # m/s
SIDEWAYS = 0.5  # of the speed
TURN = 1.0  # rad/s


# Left and right are half a stride apart. A robot that is pushed while it stands may step: else 6 % of episodes fall so.
WALK: Gait = {
    "frequency_hz": 1.5,
    "offsets": (0.0, 0.5),
    "duty": 0.6,
    "command": "velocity",
    "velocity_sensor": "base_velocity",
}


def make_flat() -> TaskConfig:
    """Walk on two legs with a commanded velocity and turning rate on flat ground.

    Trains in: about 15 minutes, on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=make_agent(), num_envs=256, num_envs_gpu=4096, max_iterations=1000)


def make_flat_29dof() -> TaskConfig:
    """Humanoid-Velocity-Flat with all 29 joints: arms and waist move too, and are kept near their default pose."""
    task = make_flat()
    posture = {
        "arms": mdp.reward(rewards.joint_deviation, -0.5, joints=(".*_(shoulder|elbow|wrist)_.*",)),
        "waist": mdp.reward(rewards.joint_deviation, -2.0, joints=("waist_.*",)),
    }
    robot = replace(task.env.robot, locked_joints=())
    return replace(task, env=replace(task.env, robot=robot, rewards=task.env.rewards | posture))


def make_flat_for_robot() -> TaskConfig:
    """Humanoid-Velocity-Flat for a real robot: without the velocity of the base, with inexact encoders and delays."""
    return replace(make_flat(), env=for_robot(make_env()))


def make_rough() -> TaskConfig:
    """Walk on two legs over slopes, stairs, bumps and blocks, which get harder as the robot improves.

    Trains in: about 42 minutes at the rate of its first 1,314 iterations, on two CPU cores.
    """
    env = on_rough_ground(make_env(), ahead=(-0.4, 0.8, 9), height_m=STANDING_HEIGHT_M)
    return TaskConfig(env=env, agent=make_agent(), num_envs=256, num_envs_gpu=4096, max_iterations=2000)


def for_robot(env: EnvConfig) -> EnvConfig:
    """Take from the actor what a robot cannot measure, and randomise what differs between a robot and its model.

    The encoders' bias has mjlab 1.6.0's bounds.
    """
    env = without_velocity(env)
    actor = env.observations["actor"]
    positions = actor["joint_positions"]
    biased = positions.replace(params={**positions.params, "biased": True})
    gains, bias = (0.9, 1.1), (-0.015, 0.015)
    randomised = {
        "gains": mdp.startup_event(randomization.actuator_gains, actuators=(".*",), factor=gains, kv_factor=gains),
        "encoders": mdp.startup_event(randomization.encoder_bias, joints=JOINTS, bias=bias),
    }
    return replace(
        env,
        actions={name: term.replace(delay=(0, 1)) for name, term in env.actions.items()},
        observations={**env.observations, "actor": {**actor, "joint_positions": biased}},
        events=env.events | randomised,
    )


def without_velocity(env: EnvConfig) -> EnvConfig:
    """Take the linear velocity of the base from the actor and from the gait; the critic still sees it."""
    by_command = {"velocity_sensor": None}
    groups = {
        group: terms | {"clock": terms["clock"].replace(params={**terms["clock"].params, **by_command})}
        for group, terms in env.observations.items()
    }
    del groups["actor"]["base_velocity"]
    rewards = {
        name: term.replace(params={**term.params, **by_command}) if "velocity_sensor" in term.params else term
        for name, term in env.rewards.items()
    }
    return replace(env, observations=groups, rewards=rewards)


def make_env() -> EnvConfig:
    """The MDP on flat ground: 50 env steps per second, 20 s per episode unless the robot falls."""
    state = make_observations(JOINTS, WALK)
    privileged = {
        "foot_contacts": mdp.observation(observations.sensors, sensors=FOOT_CONTACTS).replace(scale=0.003),
        "foot_heights": mdp.observation(gait.foot_heights, sensors=FOOT_POSITIONS).replace(scale=10.0),
        "foot_velocities": mdp.observation(observations.sensors, sensors=FOOT_VELOCITIES).replace(scale=0.5),
    }
    return EnvConfig(
        # 10 ms per physics step: half the physics of 5 ms, in which the policies are judged (docs/humanoid.md).
        robot=RobotConfig(file=str(HUMANOID), timestep=0.01, locked_joints=UPPER_BODY, mirror=MIRROR),
        decimation=2,
        episode_length_s=20.0,
        terrain=TerrainConfig(kind="flat"),
        actions={"joints": ActionTerm(actuators=JOINTS, scale=0.4, from_home=True, clip=(-4.0, 4.0))},
        commands={
            "velocity": make_command(
                left=SIDEWAYS,
                speed=SPEED,
                turn=TURN,
                standing_fraction=0.2,
                heading_fraction=0.2,
                curriculum="speed",
                sideways=SIDEWAYS,
            )
        },
        observations={
            "actor": state,
            "critic": {name: term.replace(noise=0.0) for name, term in state.items()} | privileged,
        },
        rewards=make_rewards(),
        terminations={
            "time_out": mdp.truncation(terminations.time_out),
            "tilted": mdp.termination(root.bad_orientation, joint=BASE, limit=1.0),
            "low": mdp.termination(terminations.root_height_below_minimum, joint=BASE, height_m=0.45),
        },
        events=make_events(
            JOINTS,
            feet=".*_sole_.*",
            trunk="torso_link",
            center_m=0.03,
            above_m=(0.02, 0.03),
            pushed_every_s=(4.0, 8.0),
        ),
        curriculum={
            # Commands become faster where a robot steps as it should: it would also earn much by standing still.
            "speed": mdp.curriculum(velocity.command_level, reward="keep_step", full=4.0, share=0.8, step=0.25)
        },
    )


def make_rewards() -> dict[str, RewardTerm]:
    """Track the command, keep to the schedule of the feet, and neither lean, slip, sprawl nor fall."""
    return {
        "track_planar": mdp.reward(
            velocity.track_lin_vel_xy, 3.0, command="velocity", sensor="base_velocity", tolerance=0.3
        ),
        "track_turn": mdp.reward(
            velocity.track_ang_vel_z, 1.5, command="velocity", sensor="base_angular_velocity", tolerance=0.5
        ),
        "keep_step": mdp.reward(gait.feet_gait, 4.0, contact_sensors=FOOT_CONTACTS, **WALK),
        "unload": mdp.reward(gait.swing_load, -5.0, contact_sensors=FOOT_CONTACTS, load_n=WEIGHT_N / 2, **WALK),
        "lift_feet": mdp.reward(
            gait.feet_clearance,
            4.0,
            position_sensors=FOOT_POSITIONS,
            radius_m=0.0,
            height_m=0.08,
            tolerance_m=0.05,
            **WALK,
        ),
        "bend_legs": mdp.reward(
            gait.swing_posture,
            3.0,
            joints=(".*_(hip_pitch|knee|ankle_pitch)_joint",),
            amplitudes=(-0.3, 0.6, -0.3),  # 8 cm of clearance
            tolerance=0.6,
            **WALK,
        ),
        "failed": mdp.reward(rewards.is_terminated, -250.0),  # -5 per fall
        "vertical_speed": mdp.reward(velocity.lin_vel_z, -0.5, sensor="base_velocity"),
        "rocking": mdp.reward(velocity.ang_vel_xy, -0.05, sensor="base_angular_velocity"),
        "leaning": mdp.reward(velocity.flat_orientation, -5.0, sensor="up"),
        "posture": mdp.reward(rewards.joint_deviation, -1.0, joints=(".*_hip_(roll|yaw)_joint", ".*_ankle_roll_joint")),
        "limits": mdp.reward(rewards.joint_pos_limits, -1.0, joints=JOINTS),
        "slip": mdp.reward(gait.feet_slide, -0.2, contact_sensors=FOOT_CONTACTS, velocity_sensors=FOOT_VELOCITIES),
        "landing": mdp.reward(rewards.sensors_squared, -5e-7, sensors=FOOT_CONTACTS),
        "crossing": mdp.reward(rewards.undesired_contacts, -1.0, sensors=(".*_crossing",)),
        "torque": mdp.reward(rewards.sensors_squared, -1e-5, sensors=(".*_torque",)),
        "action_rate": mdp.reward(rewards.action_rate, -0.02),
    }


def make_agent() -> AgentConfig:
    """PPO with equivariant networks; the critic also sees contacts, heights and velocities of the feet, and no noise.

    Observations are scaled by their terms, see `mjtrain_tasks.quadruped_velocity.make_agent`.
    """
    return quadruped_velocity.make_agent(hidden_dims=(256, 128), controller="", init_std=0.5, entropy_coef=0.004)
