"""From the joints, actuators and sensors of a policy to motors and IMU of Unitree's robots, by their names."""

from typing import Any

import numpy as np

from mjtrain.deployment.actuation import find_torque_ranges
from mjtrain.deployment.limits import find_base
from mjtrain.deployment.robot import Drive, Named, Readings, Targets
from mjtrain.deployment.rotations import matrix
from mjtrain.runtime.errors import RequestError

DAMPING = 1.0
"""Of motors for which the policy has no damping, in N m s/rad."""

_LEG = ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll")
_ARM = ("shoulder_pitch", "shoulder_roll", "shoulder_yaw", "elbow", "wrist_roll", "wrist_pitch", "wrist_yaw")

MOTORS = {
    "unitree-go2": [f"{leg}_{part}" for leg in ("FR", "FL", "RR", "RL") for part in ("hip", "thigh", "calf")],
    "unitree-g1": [
        *(f"{side}_{part}" for side in ("left", "right") for part in _LEG),
        *("waist_yaw", "waist_roll", "waist_pitch"),
        *(f"{side}_{part}" for side in ("left", "right") for part in _ARM),
    ],
}
"""By robot the motors in the order of its messages, each by the name of its joint without "_joint"."""


class Motors:
    """What a robot's motors must do, and what they and its IMU measured."""

    def __init__(self, robot: str, metadata: dict[str, Any]) -> None:
        """Find the motors of all joints that the policy drives; each must have one, and gains."""
        self._names, self._metadata, self._base = MOTORS[robot], metadata, find_base(metadata)
        self._joints = {
            joint: self._names.index(joint.removesuffix("_joint"))
            for joint in metadata["default_pose"]
            if joint.removesuffix("_joint") in self._names
        }
        self._damping = [DAMPING] * len(self._names)
        self._sides = [(-1.0, 1.0)] * len(self._names)
        self._actuators: dict[int, str] = {}
        for row in metadata["actions"]:
            actuator, joint = row["actuator"], row["joint"]
            if joint not in self._joints:
                raise RequestError(f"--robot {robot}: no motor for joint {joint}; it has {', '.join(self._names)}")
            if row["formula"] == "none":
                raise RequestError(f"--robot {robot}: actuator {actuator} has no gains to send, because {row['why']}")
            if self._actuators.setdefault(self._joints[joint], actuator) != actuator:
                raise RequestError(f"--robot {robot}: several actuators drive joint {joint}; a motor obeys one")
            self._damping[self._joints[joint]] = row["kd"] or DAMPING
            self._sides[self._joints[joint]] = _find_sides(row)

    def command(self, targets: Targets, state: Any) -> list[Drive]:
        """Return what each motor must do, given the newest LowState of the SDK.

        The torque is limited for this state: a motor has no limit that could be sent.
        """
        drives = []
        for index, damping in enumerate(self._damping):
            drive = targets.drives.get(self._actuators.get(index, ""))
            if drive is None:
                drives.append(Drive(kp=0.0, kd=damping))
            else:
                drives.append(_limit(drive, self._sides[index], state.motor_state[index]))
        return drives

    def read(self, state: Any, sequence: int, time_s: float, damped_by: str) -> Readings:
        """Return the readings of a LowState. What the robot does not measure of its base is NaN."""
        imu, unknown = state.imu_state, np.full(3, np.nan)
        measured = {name: np.array(getattr(imu, name), dtype=float) for name in _IMU}
        positions = {joint: np.array([float(state.motor_state[index].q)]) for joint, index in self._joints.items()}
        velocities = {joint: np.array([float(state.motor_state[index].dq)]) for joint, index in self._joints.items()}
        if self._base is not None:
            positions[self._base] = np.concatenate([unknown, measured["quaternion"]])
            velocities[self._base] = np.concatenate([unknown, measured["gyroscope"]])
        sensors: Named = {}
        for name, sensor in self._metadata.get("sensors", {}).items():
            value = _read_imu(sensor, measured) if sensor["on_base"] else None
            if value is not None:
                sensors[name] = value
        return Readings(
            sequence=sequence,
            time_s=time_s,
            positions=positions,
            velocities=velocities,
            sensors=sensors,
            damped_by=damped_by,
        )


_IMU = ("quaternion", "gyroscope", "accelerometer")


def _read_imu(sensor: dict[str, Any], measured: Named) -> np.ndarray | None:
    """Return what a sensor on the base reads; None where no IMU measures it."""
    if (sensor["type"], sensor["object"]) == ("framezaxis", "world"):
        return matrix(measured["quaternion"])[2]
    kinds = {"gyro": "gyroscope", "accelerometer": "accelerometer"}
    if sensor["reference"] is None and sensor["object"] != "world":
        kinds["framequat"] = "quaternion"
    return measured[kinds[sensor["type"]]] if sensor["type"] in kinds else None


def _find_sides(row: dict[str, Any]) -> tuple[float, float]:
    """Return least and largest torque of an actuator, relative to the larger bound: see `Actuation.max_torque`."""
    ranges = find_torque_ranges(row)
    if not ranges:
        return -1.0, 1.0
    larger = min(max(-low, high) for low, high in ranges)
    return max(low for low, _ in ranges) / larger, min(high for _, high in ranges) / larger


def _limit(drive: Drive, sides: tuple[float, float], motor: Any) -> Drive:
    """Add the torque by which a drive is beyond its bounds, so that the sum is within them."""
    if drive.max_torque is None:
        return drive
    torque = drive.kp * (drive.position - motor.q) - drive.kd * motor.dq + drive.torque
    low, high = sides[0] * drive.max_torque, sides[1] * drive.max_torque
    beyond = torque - float(np.clip(torque, low, high))
    return Drive(kp=drive.kp, kd=drive.kd, position=drive.position, torque=drive.torque - beyond)
