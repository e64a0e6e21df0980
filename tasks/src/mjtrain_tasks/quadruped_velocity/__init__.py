"""Quadruped-Velocity: walk as fast, in the direction and with the turn that a command asks for."""

from dataclasses import replace

from mjtrain import (
    ActionTerm,
    AgentConfig,
    CommandTerm,
    CurriculumTerm,
    DistributionConfig,
    EnvConfig,
    ErrorTerm,
    EventTerm,
    ModelConfig,
    ObservationTerm,
    PpoConfig,
    RewardTerm,
    TaskConfig,
    TerminationTerm,
    TerrainConfig,
)
from mjtrain.mdp import events, gait, observations, randomization, rewards, terminations, velocity
from mjtrain_tasks.models import QUADRUPED

BASE = "base"
LEGS = ("FR", "FL", "RR", "RL")
JOINTS = (".*_(hip|thigh|calf)",)
FOOT_POSITIONS = tuple(f"{leg}_foot_position" for leg in LEGS)
FOOT_VELOCITIES = tuple(f"{leg}_foot_velocity" for leg in LEGS)
FOOT_CONTACTS = tuple(f"{leg}_foot_contact" for leg in LEGS)
FOOT_RADIUS_M = 0.02
STANDING_HEIGHT_M = 0.28
SPEED = 1.0  # m/s
TURN = 1.0  # rad/s

# A trot: diagonal legs swing together.
STEP = {"frequency_hz": 2.5, "offsets": (0.0, 0.5, 0.5, 0.0), "duty": 0.55, "command": "velocity"}


def make_flat() -> TaskConfig:
    """Walk with a commanded velocity and turning rate on flat ground.

    Trains in: about 5 minutes on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=make_agent(), num_envs=512, num_envs_gpu=4096, max_iterations=300)


def make_rough() -> TaskConfig:
    """Walk on slopes, stairs, bumps and blocks, which get harder as the robot improves.

    Trains in: about 15 minutes on two CPU cores.
    """
    env = make_env()
    scan = ObservationTerm(
        func=observations.height_scan,
        params={"joint": BASE, "x": (-0.6, 0.6, 9), "y": (-0.3, 0.3, 5), "offset": STANDING_HEIGHT_M},
        noise=0.02,
        clip=(-0.5, 0.5),
    )
    actor, critic = env.observations["actor"], env.observations["critic"]
    # A robot that keeps its heading and its command can leave its patch, and so show that it masters it.
    command = env.commands["velocity"]
    command = replace(command, params={**command.params, "heading_fraction": 1.0}, resampling_s=(10.0, 10.0))
    env = replace(
        env,
        episode_length_s=10.0,
        commands={"velocity": command},
        terrain=TerrainConfig(kind="generated"),
        observations={
            "actor": {**actor, "height_scan": scan},
            "critic": {**critic, "height_scan": replace(scan, noise=0.0)},
        },
        events={
            **env.events,
            "patch": EventTerm(func=events.spawn_on_patch, params={"joint": BASE, "curriculum": "terrain"}),
        },
        curriculum={
            "terrain": CurriculumTerm(
                func=velocity.terrain_level,
                params={"joint": BASE, "command": "velocity", "far_m": 3.5},
                initial=(0.0, 3.0),
                bounds=(0.0, 9.0),
            )
        },
        terminations={
            **env.terminations,
            "out_of_bounds": TerminationTerm(
                func=terminations.out_of_bounds, params={"joint": BASE, "margin_m": 0.5}, truncates=True
            ),
        },
    )
    return TaskConfig(env=env, agent=make_agent(), num_envs=512, num_envs_gpu=4096, max_iterations=400)


def make_env() -> EnvConfig:
    """The MDP on flat ground: 50 decisions a second, 20 s an episode unless the robot falls."""
    base_state = {
        "base_velocity": ObservationTerm(
            func=observations.sensor, params={"sensor": "base_velocity"}, noise=0.1, scale=2.0
        ),
        "turning": ObservationTerm(
            func=observations.sensor, params={"sensor": "base_angular_velocity"}, noise=0.2, scale=0.5
        ),
        "up": ObservationTerm(func=observations.sensor, params={"sensor": "up"}, noise=0.05),
        "command": ObservationTerm(func=observations.command, params={"command": "velocity"}, scale=2.0),
        "clock": ObservationTerm(
            func=gait.clock, params={"frequency_hz": STEP["frequency_hz"], "command": STEP["command"]}
        ),
        "joint_positions": ObservationTerm(
            func=observations.joints_from_home, params={"joints": JOINTS}, noise=0.01, scale=2.0
        ),
        "joint_velocities": ObservationTerm(
            func=observations.joint_velocities, params={"joints": JOINTS}, noise=0.5, scale=0.1
        ),
        "last_action": ObservationTerm(func=observations.last_action, scale=0.5),
    }
    privileged = {
        "foot_contacts": ObservationTerm(func=observations.sensors, params={"sensors": FOOT_CONTACTS}, scale=0.02),
        "foot_heights": ObservationTerm(func=gait.foot_heights, params={"sensors": FOOT_POSITIONS}, scale=10.0),
    }
    return EnvConfig(
        robot=str(QUADRUPED),
        decimation=4,
        episode_length_s=20.0,
        terrain=TerrainConfig(kind="flat"),
        actions={"legs": ActionTerm(actuators=JOINTS, scale=0.3, from_home=True, clip=(-4.0, 4.0))},
        commands={
            "velocity": CommandTerm(
                func=velocity.velocity_command,
                params={"speed": SPEED, "turn": TURN, "standing_fraction": 0.1, "heading_fraction": 0.2},
                resampling_s=(2.5, 5.0),
                refine=velocity.approach,
                refine_params={
                    "joint": BASE,
                    "gain": 1.0,
                    "turn": TURN,
                    "acceleration": 2.0,
                    "turn_acceleration": 4.0,
                },
                errors={
                    "planar": ErrorTerm(
                        func=velocity.planar_error,
                        params={"command": "velocity", "sensor": "base_velocity"},
                        unit="m/s",
                    ),
                    "turn": ErrorTerm(
                        func=velocity.turn_error,
                        params={"command": "velocity", "sensor": "base_angular_velocity"},
                        unit="rad/s",
                    ),
                },
                controls={"ahead": (-SPEED, SPEED), "left": (-SPEED, SPEED), "turn": (-TURN, TURN)},
                steer=velocity.steer,
            )
        },
        observations={
            "actor": base_state,
            "critic": {name: replace(term, noise=0.0) for name, term in base_state.items()} | privileged,
        },
        rewards={
            "track_planar": RewardTerm(
                func=velocity.track_planar,
                weight=3.0,
                params={"command": "velocity", "sensor": "base_velocity", "tolerance": 0.4},
            ),
            "track_turn": RewardTerm(
                func=velocity.track_turn,
                weight=1.5,
                params={"command": "velocity", "sensor": "base_angular_velocity", "tolerance": 0.5},
            ),
            "keep_step": RewardTerm(func=gait.keep_step, weight=1.0, params={"contact_sensors": FOOT_CONTACTS, **STEP}),
            "lift_feet": RewardTerm(
                func=gait.lift_feet,
                weight=1.0,
                params={
                    "position_sensors": FOOT_POSITIONS,
                    "radius_m": FOOT_RADIUS_M,
                    "height_m": 0.08,
                    "tolerance_m": 0.06,
                    **STEP,
                },
            ),
            "failed": RewardTerm(func=rewards.failed, weight=-250.0),  # -5 a fall
            "vertical_speed": RewardTerm(func=velocity.vertical_speed, weight=-1.0, params={"sensor": "base_velocity"}),
            "rocking": RewardTerm(func=velocity.rocking, weight=-0.05, params={"sensor": "base_angular_velocity"}),
            "leaning": RewardTerm(func=velocity.leaning, weight=-2.0, params={"sensor": "up"}),
            "posture": RewardTerm(func=rewards.joint_deviation, weight=-0.3, params={"joints": (".*_hip",)}),
            "slip": RewardTerm(
                func=gait.slip,
                weight=-0.1,
                params={"contact_sensors": FOOT_CONTACTS, "velocity_sensors": FOOT_VELOCITIES},
            ),
            "knees": RewardTerm(func=rewards.contacts, weight=-1.0, params={"sensors": (".*_knee_contact",)}),
            "torque": RewardTerm(func=rewards.sensors_squared, weight=-2e-4, params={"sensors": (".*_torque",)}),
            "action_rate": RewardTerm(func=rewards.action_rate, weight=-0.02),
        },
        terminations={
            "time_out": TerminationTerm(func=terminations.time_out, truncates=True),
            "fallen": TerminationTerm(func=terminations.illegal_contact, params={"sensors": ("trunk_contact",)}),
            "tilted": TerminationTerm(func=terminations.tilted, params={"sensor": "up", "limit": 1.2}),
        },
        events={
            "friction": EventTerm(
                func=randomization.friction,
                mode="startup",
                params={"geoms": (".*_foot",), "sliding": (0.5, 1.2)},
            ),
            "payload": EventTerm(
                func=randomization.mass, mode="startup", params={"bodies": ("trunk",), "factor": (0.9, 1.2)}
            ),
            "center_of_mass": EventTerm(
                func=randomization.center_of_mass,
                mode="startup",
                params={"bodies": ("trunk",), "offset_m": (-0.02, 0.02)},
            ),
            "gains": EventTerm(
                func=randomization.actuator_gains, mode="startup", params={"actuators": (".*",), "factor": (0.9, 1.1)}
            ),
            "pose": EventTerm(
                func=events.random_base_pose,
                params={
                    "joint": BASE,
                    "xy": (-0.5, 0.5),
                    "z": (0.04, 0.06),  # so that no foot starts inside the ground
                    "yaw": (-3.1416, 3.1416),
                    "linear_velocity": (-0.3, 0.3),
                    "angular_velocity": (-0.3, 0.3),
                },
            ),
            "joints": EventTerm(func=events.scale_joint_positions, params={"joints": JOINTS, "factor": (0.85, 1.15)}),
            "push": EventTerm(
                func=events.push,
                mode="interval",
                interval_s=(8.0, 12.0),
                params={"joint": BASE, "linear": 0.5, "angular": 0.3},
            ),
        },
    )


def make_agent() -> AgentConfig:
    """PPO; the critic also sees contacts and heights of the feet, and no noise.

    Observations are scaled by their terms. A running normalisation would move the policy on its own between acting and
    learning, and the adaptive schedule would answer by lowering the learning rate to its floor (measured: 1e-5).
    """
    return AgentConfig(
        actor=ModelConfig(
            hidden_dims=(256, 128), obs_normalization=False, distribution_cfg=DistributionConfig(init_std=0.8)
        ),
        critic=ModelConfig(hidden_dims=(256, 128), obs_normalization=False),
        algorithm=PpoConfig(entropy_coef=0.002, desired_kl=0.02, gamma=0.98),
    )
