"""A process that plays a robot of Unitree: it talks as the robot does, with the messages of the vendor's SDK over DDS.

python -m support.played_unitree KIND DOMAIN [--deaf] [--deny N] [--late N]: KIND is go or hg. --deaf: its motion
switcher does not answer. --deny: it refuses so many requests to release the motors. --late: it releases them when it
has been asked for its mode so many times more.
Each joint is an inertia that obeys its motor. It writes a line of JSON when it begins, and one for each change of who
drives: "free" before any command, "driven", "damped". It ends when its standard input does.
"""

import importlib
import json
import os
import sys
import threading
import time
import traceback
from typing import Any

from unitree_sdk2py.comm.motion_switcher.motion_switcher_api import (  # pyright: ignore[reportMissingImports]
    MOTION_SWITCHER_API_ID_CHECK_MODE,
    MOTION_SWITCHER_API_ID_RELEASE_MODE,
    MOTION_SWITCHER_API_VERSION,
    MOTION_SWITCHER_SERVICE_NAME,
)
from unitree_sdk2py.core.channel import ChannelFactoryInitialize, ChannelPublisher, ChannelSubscriber  # pyright: ignore[reportMissingImports]
from unitree_sdk2py.idl import default  # pyright: ignore[reportMissingImports]
from unitree_sdk2py.rpc.server import Server  # pyright: ignore[reportMissingImports]
from unitree_sdk2py.utils.crc import CRC  # pyright: ignore[reportMissingImports]

STEP_S = 0.005
INERTIA = 0.1
QUATERNION = (0.9689124, 0.0, 0.2474040, 0.0)  # 0.5 rad about y
GYROSCOPE = (0.1, -0.2, 0.3)
MODE_MACHINE = 5
DENIED = 7004
START = {"go": 4 * (0.0, 0.8, -1.5), "hg": ()}


class Switcher(Server):
    """The service that says which built-in controller runs, and ends it."""

    def __init__(self, denials: int, checks: int) -> None:
        super().__init__(MOTION_SWITCHER_SERVICE_NAME)
        self.mode, self._denials, self._checks, self._is_releasing = "normal", denials, checks, False
        self._SetApiVersion(MOTION_SWITCHER_API_VERSION)
        self._RegistHandler(MOTION_SWITCHER_API_ID_CHECK_MODE, self.check, False)
        self._RegistHandler(MOTION_SWITCHER_API_ID_RELEASE_MODE, self.release, False)
        self.Start()

    def check(self, _: str) -> tuple[int, str]:
        if self._is_releasing:
            self._checks -= 1
            self.mode = "normal" if self._checks >= 0 else ""
        return 0, json.dumps({"form": "0", "name": self.mode})

    def release(self, _: str) -> tuple[int, str]:
        self._denials -= 1
        if self._denials >= 0:
            return DENIED, ""
        self._is_releasing = True
        return 0, ""


class PlayedRobot:
    """Its motors, its IMU and its messages."""

    def __init__(self, kind: str, domain: int, out: Any) -> None:
        self._kind, self._out, self._is = kind, out, "free"
        self._state = getattr(default, f"unitree_{kind}_msg_dds__LowState_")()
        for motor, position in zip(self._state.motor_state, START[kind], strict=False):
            motor.q = position
        self._command: Any = None
        types = importlib.import_module(f"unitree_sdk2py.idl.unitree_{kind}.msg.dds_")
        ChannelFactoryInitialize(domain, "lo")
        self._publisher = ChannelPublisher("rt/lowstate", types.LowState_)
        self._publisher.Init()
        self._subscriber = ChannelSubscriber("rt/lowcmd", types.LowCmd_)
        self._subscriber.Init(self.obey, 10)
        self.switcher: Any = None

    def obey(self, command: Any) -> None:
        try:
            self.check(command)
        except AssertionError:  # in a thread of the SDK, which nobody would miss
            traceback.print_exc()
            os._exit(1)
        self._command = command
        now = "driven" if any(motor.kp for motor in command.motor_cmd) else "damped"
        if now != self._is:
            self._is = now
            self.say()

    def check(self, command: Any) -> None:
        assert command.crc == CRC().Crc(command), "the check sum is wrong"
        assert self.switcher.mode == "", "the built-in controller still drives"
        if self._kind == "hg":
            assert (command.mode_pr, command.mode_machine) == (0, MODE_MACHINE)
        else:
            assert (list(command.head), command.level_flag) == ([0xFE, 0xEF], 0xFF)

    def say(self) -> None:
        motors = [] if self._command is None else self._command.motor_cmd
        row = {
            "is": self._is,
            "mode": [motor.mode for motor in motors],
            "kp": [motor.kp for motor in motors],
            "kd": [motor.kd for motor in motors],
            "q": [motor.q for motor in self._state.motor_state],
        }
        self._out.write(json.dumps(row) + "\n")
        self._out.flush()

    def step(self) -> None:
        imu = self._state.imu_state
        imu.quaternion, imu.gyroscope = list(QUATERNION), list(GYROSCOPE)
        if self._kind == "hg":
            self._state.mode_machine = MODE_MACHINE
        for motor, command in zip(
            self._state.motor_state, self._command.motor_cmd if self._command else (), strict=False
        ):
            if command.mode == 1:
                torque = command.kp * (command.q - motor.q) + command.kd * (command.dq - motor.dq) + command.tau
                motor.dq += STEP_S * torque / INERTIA
                motor.q += STEP_S * motor.dq
        self._publisher.Write(self._state)


def main() -> None:
    """Play until standard input ends."""
    kind, domain, *flags = sys.argv[1:]
    out, sys.stdout = sys.stdout, sys.stderr  # the SDK writes to standard output
    robot = PlayedRobot(kind, int(domain), out)
    if "--deaf" not in flags:
        counts = dict(zip(flags[::2], map(int, flags[1::2]), strict=True))
        robot.switcher = Switcher(counts.get("--deny", 0), counts.get("--late", 0))
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    robot.say()
    while not ended.is_set():
        robot.step()
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
