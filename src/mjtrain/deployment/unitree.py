"""Go2 and G1 of Unitree through the vendor's SDK, at the level of their motors.

It follows the interface that unitree_sdk2_python documents. Tests run it with the SDK over DDS, against a process that
plays the robot. It has never run on a robot.
"""

import contextlib
import importlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mjtrain.deployment.actuation import find_torque_ranges
from mjtrain.deployment.robot import Drive, Named, Readings, Targets
from mjtrain.deployment.rotations import matrix
from mjtrain.deployment.terms import find_base
from mjtrain.runtime.errors import RequestError, require

SEND_S = 0.002
"""Time between two commands, as in the vendor's examples."""

FIRST_STATE_S = 5.0
"""Longest wait for the first state, and for an answer of the robot's services, in seconds."""

POLL_S = 0.05
"""Time between two questions whether the built-in controller has released the motors."""

POLLS, RELEASES = 20, 10
"""How often that is asked before it is told again to release them, and how often it is told."""

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

_IMU = ("quaternion", "gyroscope", "accelerometer")


class UnitreeRobot:
    """Repeats the last command up to 500 times a second, and takes the newest state when it is asked for readings.

    The SDK prints its errors to standard output, also from other threads.
    """

    def __init__(self, robot: str, address: str, metadata: dict[str, Any], watchdog_s: float) -> None:
        """Connect. The robot's built-in controller has the motors until `take_motors`; before, no command is sent.

        Args:
            robot: A key of `MOTORS`.
            address: Network interface, with the DDS domain after a colon where it is not 0.
            watchdog_s: Time without targets after which all motors only brake.
        """
        self._motors = Motors(robot, metadata)
        require(f"--robot {robot}", "unitree", "unitree_sdk2py")
        self._flags = f"--robot {robot} --address {address}"
        self._messages = "hg" if robot == "unitree-g1" else "go"
        self._watchdog_s, self._written_s, self._driven, self._damped_by = watchdog_s, 0.0, False, ""
        self._lock, self._closed = threading.Lock(), threading.Event()
        self.received = 0
        """States that were read."""
        self._open(*address.partition(":")[::2])
        self._message = self._damped = self._pack(Targets(state="damped"))
        self._sender: threading.Thread | None = None

    def _open(self, interface: str, domain: str) -> None:
        from unitree_sdk2py.core.channel import ChannelFactoryInitialize, ChannelPublisher, ChannelSubscriber  # pyright: ignore[reportMissingImports]
        from unitree_sdk2py.idl import default  # pyright: ignore[reportMissingImports]
        from unitree_sdk2py.utils.crc import CRC  # pyright: ignore[reportMissingImports]

        try:
            ChannelFactoryInitialize(int(domain or 0), interface)
        except Exception as error:  # the SDK raises no other class
            raise RequestError(f"{self._flags}: DDS cannot use this network interface ({error})") from error
        types = importlib.import_module(f"unitree_sdk2py.idl.unitree_{self._messages}.msg.dds_")
        self._crc, self._make_message = CRC(), getattr(default, f"unitree_{self._messages}_msg_dds__LowCmd_")
        self._subscriber: Any = ChannelSubscriber("rt/lowstate", types.LowState_)
        self._subscriber.Init()
        state = self._subscriber.Read(FIRST_STATE_S)
        if state is None:
            raise RequestError(f"{self._flags}: no message on rt/lowstate within {FIRST_STATE_S:g} s")
        self._take(state)
        self._publisher: Any = ChannelPublisher("rt/lowcmd", types.LowCmd_)
        self._publisher.Init()

    def take_motors(self, stopped: Sequence[int] = ()) -> None:
        """Ask the built-in controller for the motors, which brake from then on. It may take 10 s.

        It takes no motors if a signal has arrived, which `stopped` then contains, before a request was accepted.
        """
        from unitree_sdk2py.comm.motion_switcher.motion_switcher_client import MotionSwitcherClient  # pyright: ignore[reportMissingImports]

        switcher: Any = MotionSwitcherClient()
        mode, answer, is_accepted = {"name": ""}, 0, False
        switcher.SetTimeout(FIRST_STATE_S)
        switcher.Init()
        for poll in range(RELEASES * POLLS):
            if stopped and not is_accepted:  # else nobody would drive or brake the motors when they are released
                return
            code, mode = switcher.CheckMode()
            if code:
                raise RequestError(f"{self._flags}: the robot's motion switcher does not answer (code {code})")
            if not mode["name"]:
                self._sender = threading.Thread(target=self._send, daemon=True)
                self._sender.start()
                return
            if poll % POLLS == 0:
                answer, _ = switcher.ReleaseMode()
                is_accepted = is_accepted or answer == 0
            else:
                time.sleep(POLL_S)
        raise RequestError(
            f"{self._flags}: the built-in controller does not release the motors "
            f"(mode {mode['name']}, code {answer} for the last request)"
        )

    def read(self) -> Readings:
        """Return the newest readings. It waits for at most 1 ms."""
        state = self._subscriber.Read(0.001)
        if state is not None:
            self._take(state)
        return self._motors.read(self._state, self.received, self._read_s, self._damped_by)

    def _take(self, state: Any) -> None:
        self._state, self._read_s = state, time.monotonic()
        self.received += 1

    def write(self, targets: Targets) -> None:
        """Set what is sent from now on."""
        is_damped = targets.state in ("damped", "stop")
        message = self._damped if is_damped else self._pack(targets)
        with self._lock:
            self._written_s, self._damped_by = time.monotonic(), "" if is_damped else self._damped_by
            if not self._damped_by:  # else the motors brake until the controller has been damped, too
                self._driven, self._message = not is_damped, message

    def _pack(self, targets: Targets) -> Any:
        message = self._make_message()
        if self._messages == "hg":  # pitch and roll of ankles and waist instead of the motors A and B
            message.mode_pr, message.mode_machine = 0, self._state.mode_machine
        else:
            message.head, message.level_flag = [0xFE, 0xEF], 0xFF
        for motor, command in zip(message.motor_cmd, self._motors.command(targets, self._state), strict=False):
            motor.mode, motor.dq = 1, 0.0
            motor.q, motor.kp, motor.kd, motor.tau = command.position, command.kp, command.kd, command.torque
        message.crc = self._crc.Crc(message)
        return message

    def _send(self) -> None:
        while not self._closed.wait(SEND_S):
            with self._lock:
                if self._driven and time.monotonic() - self._written_s > self._watchdog_s:
                    self._damp(f"no targets for {self._watchdog_s:g} s")
                message = self._message
            failure = self._publish(message)
            if failure:  # the next try is a command to brake
                with self._lock:
                    self._damp(f"commands cannot be sent: {failure}")

    def _damp(self, cause: str) -> None:
        self._damped_by, self._driven, self._message = cause, False, self._damped

    def _publish(self, message: Any) -> str:
        """Send a message, and say why that failed; empty if it did not."""
        try:
            return "" if self._publisher.Write(message) else "the SDK has printed why"
        except Exception as error:  # of any class: the SDK fails, too, where it prints one that is not of DDS
            return str(error.__context__ or error)

    def close(self) -> None:
        """Let all motors brake, and end the connection."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._subscriber.Close)
            stack.callback(self._publisher.Close)
            if self._sender is not None:
                stack.callback(self._brake)  # after the last command of the sender
                self.write(Targets(state="stop"))
                self._closed.set()
                self._sender.join(1.0)

    def _brake(self) -> None:
        for _ in range(10):  # because one may be lost
            self._publish(self._damped)
            time.sleep(SEND_S)


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
            drive = targets.drives.get(self._actuators.get(index, ""), Drive(kp=0.0, kd=damping))
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
