"""Arm-Lift-Cube: pick a cube up with a gripper and hold it at a commanded place."""

from mjtrain import (
    ActionTerm,
    AgentConfig,
    DistributionConfig,
    EnvConfig,
    ModelConfig,
    PpoConfig,
    RobotConfig,
    SensorConfig,
    TaskConfig,
    WarpConfig,
    mdp,
)
from mjtrain.mdp import events, objects, observations, randomization, rewards, targets, terminations
from mjtrain_tasks.arm_lift_cube.carrying import carried_near, grasped, lifted, pointing_down
from mjtrain_tasks.models import ARM_GRIPPER

ARM_JOINTS = ("shoulder_.*", "elbow", "wrist_.*")
GRIPPER = ("hand", "left_tip", "right_tip")
START = {"x": (0.35, 0.55), "y": (-0.2, 0.2), "z": (0.021, 0.021)}
"""Bounds of the place where the cube starts, in m in the world's frame. It falls by 1 mm: half its side is 2 cm, and if
it started by touching the ground, rounding would decide whether it does."""

GOALS = {"x": (0.35, 0.55), "y": (-0.2, 0.2), "z": (0.12, 0.32)}
"""Bounds of the place where it is to be held, likewise."""

CUBE_AT_TOOL = {"object": "cube", "position_sensor": "tool_position"}
CARRIED = {**CUBE_AT_TOOL, "orientation_sensor": "tool_orientation"}
PLACE = {"command": "place", "object": "cube"}
LIFTED_M = (0.022, 0.062)
"""Heights of the cube, in m, between which it counts as more and more lifted."""


def make_task() -> TaskConfig:
    """Pick a cube up with a gripper and hold it at a commanded place.

    Trains in: about 15 minutes, in one thread, on two CPU cores.
    """
    return TaskConfig(env=make_env(), agent=make_agent(), num_envs=512, num_envs_gpu=4096, max_iterations=250)


def make_robot() -> RobotConfig:
    """Return the arm with sensors that tell what touches the cube and the ground."""
    pairs = [("left_tip", "cube"), ("right_tip", "cube")] + [(part, "ground") for part in GRIPPER]
    return RobotConfig(
        file=str(ARM_GRIPPER),
        sensors={
            f"{part}_on_{other}": SensorConfig(type="contact", object=part, reference=other, data=("found",))
            for part, other in pairs
        },
    )


def make_env() -> EnvConfig:
    """The MDP: 25 env steps per second; an episode is one cube and one place, for 4 s."""
    return EnvConfig(
        robot=make_robot(),
        warp=WarpConfig(nconmax=32, njmax=96),  # a cube that is lifted with a jerk has 8 contacts and 25 rows
        decimation=8,
        episode_length_s=4.0,
        actions={
            "arm": ActionTerm(actuators=ARM_JOINTS, scale=1.0, clip=(-1.5, 1.5)),
            "fingers": ActionTerm(actuators=("fingers",), scale=0.03, offset=0.02),
        },
        commands={
            "place": mdp.command(objects.place_command, **GOALS).replace(
                resampling_s=(4.0, 4.0),
                errors={"distance": mdp.error(objects.distance, "m", **PLACE).replace(settling_s=3.5)},
                controls=GOALS,
                steer=targets.steer,
                is_pose=True,
            )
        },
        observations={
            "actor": {
                "joint_positions": mdp.observation(observations.joint_pos_rel, joints=ARM_JOINTS),
                "joint_velocities": mdp.observation(observations.joint_velocities, joints=ARM_JOINTS),
                "opening": mdp.observation(observations.joint_pos, joint="left_finger"),
                "cube_position": mdp.observation(objects.position_in, **CUBE_AT_TOOL),
                "cube_orientation": mdp.observation(
                    objects.orientation_in, object="cube", orientation_sensor="tool_orientation"
                ),
                "cube_to_place": mdp.observation(objects.position_error, **PLACE),
                "last_action": mdp.observation(observations.last_action),
            }
        },
        successes={"placed": mdp.success(objects.reached, command="place", object="cube", tolerance_m=0.02)},
        rewards={
            "reach": mdp.reward(objects.near_tool, 1.0, **CUBE_AT_TOOL, tolerance_m=0.1),
            "grasp": mdp.reward(grasped, 1.0, sensors=("left_tip_on_cube", "right_tip_on_cube")),
            "lift": mdp.reward(lifted, 2.0, **CARRIED, height_m=LIFTED_M),
            "near": mdp.reward(carried_near, 8.0, command="place", **CARRIED, height_m=LIFTED_M, tolerance_m=0.2),
            "exact": mdp.reward(carried_near, 5.0, command="place", **CARRIED, height_m=LIFTED_M, tolerance_m=0.03),
            "down": mdp.reward(pointing_down, 1.0, orientation_sensor="tool_orientation"),
            "leaning": mdp.reward(rewards.undesired_contacts, -2.0, sensors=(".*_on_ground",)),
            "action_rate": mdp.reward(rewards.action_rate, -0.01),
            "speed": mdp.reward(rewards.joint_speed, -0.005, joints=ARM_JOINTS),
        },
        terminations={
            "time_out": mdp.truncation(terminations.time_out),
            "strayed": mdp.termination(objects.strayed, **CUBE_AT_TOOL, beyond_m=0.5),
        },
        events={
            "mass": mdp.startup_event(randomization.mass, bodies=("cube",), factor=(0.8, 1.25)),
            "friction": mdp.startup_event(randomization.friction, geoms=(".*_tip",), sliding=(0.8, 1.2)),
            "arm": mdp.reset_event(events.reset_joints_by_scale, joints=ARM_JOINTS, factor=(0.95, 1.05)),
            "cube_place": mdp.reset_event(objects.reset_place, object="cube", **START),
            "cube_yaw": mdp.reset_event(events.reset_root_state_uniform, joint="cube", yaw=(-0.7854, 0.7854)),
        },
    )


def make_agent() -> AgentConfig:
    """PPO with two networks that see the same observations."""
    return AgentConfig(
        actor=ModelConfig(hidden_dims=(128, 64), distribution_cfg=DistributionConfig(init_std=1.0)),
        critic=ModelConfig(hidden_dims=(128, 64)),
        algorithm=PpoConfig(entropy_coef=0.005, desired_kl=0.02, gamma=0.97),
        obs_groups={"actor": ("actor",), "critic": ("actor",)},
    )
