"""Quadruped-Velocity: walk at the velocity, in the direction and with the turning rate of a command."""

from dataclasses import replace

from mjtrain import (
    ActionTerm,
    AgentConfig,
    DistributionConfig,
    EnvConfig,
    MirrorConfig,
    ModelConfig,
    PpoConfig,
    RobotConfig,
    SymmetryConfig,
    TaskConfig,
    TerrainConfig,
    WarmStartConfig,
    WarpConfig,
    mdp,
)
from mjtrain.mdp import gait, observations, rewards, terminations, velocity
from mjtrain_tasks.models import QUADRUPED
from mjtrain_tasks.walking import Gait, make_command, make_events, make_observations, on_rough_ground

LEGS = ("FR", "FL", "RR", "RL")
JOINTS = (".*_(hip|thigh|calf)",)
FOOT_POSITIONS = tuple(f"{leg}_foot_position" for leg in LEGS)
FOOT_VELOCITIES = tuple(f"{leg}_foot_velocity" for leg in LEGS)
FOOT_CONTACTS = tuple(f"{leg}_foot_contact" for leg in LEGS)
FOOT_RADIUS_M = 0.02
STANDING_HEIGHT_M = 0.28
MIRROR = MirrorConfig(names={"(F|R)L_(.*)": r"\1R_\2"})
SPEED = 1.0  # m/s
TURN = 1.0  # rad/s


# Diagonal legs swing together.
TROT: Gait = {
    "frequency_hz": 2.5,
    "offsets": (0.0, 0.5, 0.5, 0.0),
    "duty": 0.55,
    "command": "velocity",
    "velocity_sensor": None,
}


def make_flat() -> TaskConfig:
    """Walk with a commanded velocity and turning rate on flat ground.

    Trains in: about 3 minutes on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=make_agent(), num_envs=256, num_envs_gpu=4096, max_iterations=300)


def make_rough() -> TaskConfig:
    """Walk on slopes, stairs, bumps and blocks, which get harder as the robot improves.

    Trains in: about 6 minutes on two CPU cores.
    """
    # The trot that it imitates already walks on the lower levels, so worlds begin higher and rise faster.
    env = make_env()
    # With the weights of flat ground, actions change faster and torques are higher: see docs/results.md.
    effort = {
        "torque": env.rewards["torque"].replace(weight=-2e-3),
        "action_rate": env.rewards["action_rate"].replace(weight=-0.08),
    }
    env = on_rough_ground(
        replace(env, rewards=env.rewards | effort),
        ahead=(-0.6, 0.6, 9),
        height_m=STANDING_HEIGHT_M,
        initial_levels=(0.0, 6.0),
        step=3.0,
    )
    room = WarpConfig(nconmax=48, njmax=192)  # 10 and 56 by benchmarks/buffers.py; the guess is 128 and 1,024
    env = replace(env, warp=room)
    return TaskConfig(env=env, agent=make_agent(init_std=0.4), num_envs=256, num_envs_gpu=4096, max_iterations=400)


def make_env() -> EnvConfig:
    """The MDP on flat ground: 50 env steps per second, 20 s per episode unless the robot falls."""
    state = make_observations(JOINTS, TROT)
    privileged = {
        "foot_contacts": mdp.observation(observations.sensors, sensors=FOOT_CONTACTS).replace(scale=0.02),
        "foot_heights": mdp.observation(gait.foot_heights, sensors=FOOT_POSITIONS).replace(scale=10.0),
    }
    return EnvConfig(
        # 10 ms per physics step: half the physics of 5 ms, in which the policies do as well (docs/speedrun.md).
        robot=RobotConfig(file=str(QUADRUPED), timestep=0.01, mirror=MIRROR),
        decimation=2,
        episode_length_s=20.0,
        terrain=TerrainConfig(kind="flat"),
        actions={"legs": ActionTerm(actuators=JOINTS, scale=0.3, from_home=True, clip=(-4.0, 4.0))},
        commands={
            "velocity": make_command(left=SPEED, speed=SPEED, turn=TURN, standing_fraction=0.1, heading_fraction=0.2)
        },
        observations={
            "actor": state,
            "critic": {name: term.replace(noise=0.0) for name, term in state.items()} | privileged,
        },
        rewards={
            "track_planar": mdp.reward(
                velocity.track_lin_vel_xy, 3.0, command="velocity", sensor="base_velocity", tolerance=0.4
            ),
            "track_turn": mdp.reward(
                velocity.track_ang_vel_z, 3.0, command="velocity", sensor="base_angular_velocity", tolerance=0.5
            ),
            "keep_step": mdp.reward(gait.feet_gait, 1.0, contact_sensors=FOOT_CONTACTS, **TROT),
            "lift_feet": mdp.reward(
                gait.feet_clearance,
                1.0,
                position_sensors=FOOT_POSITIONS,
                radius_m=FOOT_RADIUS_M,
                height_m=0.08,
                tolerance_m=0.06,
                **TROT,
            ),
            "failed": mdp.reward(rewards.is_terminated, -250.0),  # -5 per fall
            "vertical_speed": mdp.reward(velocity.lin_vel_z, -1.0, sensor="base_velocity"),
            "rocking": mdp.reward(velocity.ang_vel_xy, -0.05, sensor="base_angular_velocity"),
            "leaning": mdp.reward(velocity.flat_orientation, -2.0, sensor="up"),
            "posture": mdp.reward(rewards.joint_deviation, -0.3, joints=(".*_hip",)),
            "slip": mdp.reward(gait.feet_slide, -0.1, contact_sensors=FOOT_CONTACTS, velocity_sensors=FOOT_VELOCITIES),
            "knees": mdp.reward(rewards.undesired_contacts, -1.0, sensors=(".*_knee_contact",)),
            "torque": mdp.reward(rewards.sensors_squared, -2e-4, sensors=(".*_torque",)),
            "action_rate": mdp.reward(rewards.action_rate, -0.02),
        },
        terminations={
            "time_out": mdp.truncation(terminations.time_out),
            "fallen": mdp.termination(terminations.illegal_contact, sensors=("trunk_contact",)),
            "tilted": mdp.termination(terminations.bad_orientation, sensor="up", limit=1.2),
        },
        controllers={
            "trot": mdp.controller(gait.stepping, position_sensors=FOOT_POSITIONS, height_m=0.1, turn_gain=1.7, **TROT)
        },
        events=make_events(
            JOINTS, feet=".*_foot", trunk="trunk", center_m=0.02, above_m=(0.04, 0.06), pushed_every_s=(8.0, 12.0)
        ),
    )


def make_agent(
    *,
    is_even: bool = True,
    hidden_dims: tuple[int, ...] = (128, 64),
    controller: str = "trot",
    init_std: float = 0.8,
    entropy_coef: float = 0.002,
    gamma: float = 0.98,
) -> AgentConfig:
    """PPO; the critic also sees contacts and heights of the feet, and no noise.

    Args:
        is_even: Whether the robot's left side is the mirror image of its right side; the networks are too then.
        hidden_dims: Units of the hidden layers of both networks.
        controller: What the actor imitates before it learns; empty for nothing.
        init_std: Standard deviation of the actions at the start. With 0.8, the levels on rough ground fall for 60
            iterations or more before they rise.
        entropy_coef: As in `PpoConfig`.
        gamma: Likewise.

    Observations are scaled by their terms. A running normalisation would change the policy between acting and learning,
    and the adaptive schedule would respond by lowering the learning rate to its minimum (measured: 1e-5).
    """
    network = ModelConfig(hidden_dims=hidden_dims, activation="relu", obs_normalization=False)
    return AgentConfig(
        actor=replace(network, distribution_cfg=DistributionConfig(init_std=init_std)),
        critic=network,
        algorithm=PpoConfig(
            entropy_coef=entropy_coef,
            desired_kl=0.02,
            gamma=gamma,
            symmetry_cfg=SymmetryConfig(use_equivariant_networks=is_even),
            warm_start=WarmStartConfig(controller=controller),
        ),
    )
