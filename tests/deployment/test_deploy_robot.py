"""The command deploy in real processes, and its controller with a robot that the test plays over UDP."""

import fcntl
import json
import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mjtrain_policies
from mjtrain.cli.deploy import _find_model, main
from mjtrain.deployment import control_loop
from mjtrain.deployment.actuation import Actuation
from mjtrain.deployment.control_loop import COMPLETED, Controller, Guard, Limits, Phases, TickLog
from mjtrain.deployment.observation import make_observer
from mjtrain.deployment.packets import PacketError, UdpRobot, decode_readings, decode_targets, encode_readings
from mjtrain.deployment.policy import DeployedPolicy, check
from mjtrain.deployment.robot import Drive, Readings, Targets
from mjtrain.deployment.run_policy import SimulatedProcess, report
from mjtrain.deployment.steering import APPROACH, Commands, Steering
from mjtrain.env.catalog import load_task
from mjtrain.runtime.errors import RequestError
from mjtrain.sim.robots.robot import save_model
from support.constant_policy import make_constant_policy
from support.machine import patience, wait_until

LEARNED = mjtrain_policies.FOLDER / "Arm-Lift-Cube" / "policy.onnx"
HEAVY = "{'torch', 'warp', 'mujoco', 'mujoco_warp', 'tensordict', 'rsl_rl', 'onnx'}"
RUN = (
    f"import sys; from mjtrain.cli.deploy import main\ntry: main()\nfinally: print(sorted({HEAVY} & set(sys.modules)))"
)
"""The command, and then which heavy modules its process has imported."""


@pytest.fixture(scope="module")
def lift(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lift")
    shutil.copy(LEARNED, folder)
    save_model(load_task("Arm-Lift-Cube").env, folder / "model.mjb")
    return folder


HEARS_SIGHUP = ("env", "--default-signal=HUP")
"""Begin of a command that hears SIGHUP although the tests were started by nohup."""


def start(folder: Path, *flags: str, watchdog_s: float = 60, by: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    generous = [
        "--late-ticks",
        "100000",
        "--stale-s",
        "60",
        "--watchdog-s",
        str(watchdog_s),
    ]  # this machine may be busy
    given = ["--command", "0.45", "0.1", "0.25", *generous, *flags]
    command = [*HEARS_SIGHUP, *by, sys.executable, "-c", RUN, str(folder), *given]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.supports("deployment", task="Arm-Lift-Cube")
def test_a_policy_acts_on_a_robot_in_another_process_without_torch(lift: Path, tmp_path: Path) -> None:
    log = tmp_path / "ticks.jsonl"
    done = start(lift, "--seconds", "2", "--standing-s", "0.5", "--json", "--log", str(log))
    out, err = done.communicate(timeout=patience(60))
    assert done.returncode == 0, err
    text, _, modules = out.rstrip().rpartition("\n")
    assert modules == "[]"
    report = json.loads(text)
    assert report["ended"] == COMPLETED
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert list(dict.fromkeys(row["state"] for row in rows)) == ["damped", "standing", "policy"]
    assert len(rows) == report["ticks"] > 50
    assert np.ptp([row["observation"] for row in rows if row["state"] == "policy"], axis=0).max() > 0.1, "it moved"
    assert "damped by the controller (stop)" in err


def test_a_full_disk_does_not_take_the_report(lift: Path) -> None:
    done = start(lift, "--seconds", "0.2", "--standing-s", "0.1", "--damped-s", "0.1", "--json", "--log", "/dev/full")
    out, err = done.communicate(timeout=patience(60))
    assert done.returncode == 1
    assert json.loads(out.rstrip().rpartition("\n")[0])["ended"] == COMPLETED
    assert err.splitlines()[-1] == "deploy: --log /dev/full: cannot be written (No space left on device)"


def test_the_robot_damps_itself_where_the_controller_is_killed(lift: Path) -> None:
    process = start(lift, "--seconds", "600", "--standing-s", "0.1", "--damped-s", "0.1", watchdog_s=patience(1))
    try:
        assert process.stderr is not None
        assert "robot: driven (policy)\n" in iter(process.stderr.readline, "")
        process.kill()
        lines = process.stderr.read()  # until the robot's process has ended, too
    finally:
        process.kill()
        process.wait()
    assert "damped by its watchdog" in lines


@pytest.mark.parametrize(
    ("by", "sent", "heard"),
    [((), [signal.SIGHUP], signal.SIGHUP), (("nohup",), [signal.SIGHUP, signal.SIGTERM], signal.SIGTERM)],
    ids=["SIGHUP", "nohup"],
)
def test_a_signal_stops_the_robot(
    by: tuple[str, ...], sent: list[signal.Signals], heard: signal.Signals, lift: Path
) -> None:
    process = start(lift, "--seconds", "600", "--standing-s", "0.1", "--damped-s", "0.1", "--json", by=by)
    try:
        assert process.stderr is not None
        assert "robot: driven (policy)\n" in iter(process.stderr.readline, "")
        for number in sent:
            process.send_signal(number)
        out, err = process.communicate(timeout=patience(60))
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + heard
    assert json.loads(out.rstrip().rpartition("\n")[0])["ended"] == heard.name
    assert "damped by the controller (stop)" in err


@pytest.mark.parametrize("is_steered", [False, True])
def test_the_loss_of_the_terminal_stops_the_robot(is_steered: bool, lift: Path) -> None:
    """Its session hears SIGHUP; a process that reads keys may see the end of the terminal before that."""
    operator, terminal = pty.openpty()
    flags = ["--seconds", "600", "--standing-s", "0.1", "--damped-s", "0.1", "--late-ticks", "100000"]
    flags += ["--stale-s", "60", "--watchdog-s", "60", "--command", "0.45", "0.0", "0.25"]
    command = [sys.executable, "-m", "mjtrain.cli.deploy", str(lift), *flags]
    process = subprocess.Popen(
        [*HEARS_SIGHUP, *command, *(["--drive", "keyboard"] if is_steered else [])],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    try:
        assert process.stderr is not None
        assert "robot: driven (policy)\n" in iter(process.stderr.readline, "")
        os.close(operator)
        out, err = process.communicate(timeout=patience(60))
    finally:
        process.kill()
        process.wait()
    assert process.returncode in ((128 + signal.SIGHUP, 0) if is_steered else (128 + signal.SIGHUP,)), err
    assert "SIGHUP" in out or (is_steered and "stopped by the operator" in out)
    assert "damped by the controller (stop)" in err


def test_keys_of_a_terminal_steer_a_robot_and_stop_it(lift: Path, tmp_path: Path) -> None:
    log = tmp_path / "ticks.jsonl"
    flags = ["--command", "0.45", "0.0", "0.25", "--late-ticks", "100000", "--stale-s", "60", "--watchdog-s", "60"]
    flags += ["--seconds", "600", "--standing-s", "0.2", "--damped-s", "0.1", "--drive", "keyboard", "--log", str(log)]
    operator, terminal = pty.openpty()
    command = [sys.executable, "-m", "mjtrain.cli.deploy", str(lift), *flags]
    process = subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "robot: driven (policy)\n" in iter(process.stderr.readline, "")
        os.write(operator, b"jj")
        assert not select.select([process.stdout], [], [], 1.0)[0], "it acts until it is stopped"
        os.write(operator, b"x")
        out, err = process.communicate(timeout=patience(60))
    finally:
        process.kill()
        os.close(operator)
        os.close(terminal)
    assert process.returncode == 0, err
    assert "stopped by the operator" in out
    commands = [row["commands"]["place"] for row in map(json.loads, log.read_text().splitlines()) if "commands" in row]
    assert commands[0] == [0.45, 0.0, 0.25]
    assert commands[-1] == pytest.approx([0.45, 0.08, 0.25])


def test_a_killed_robot_stops_the_controller(lift: Path) -> None:
    process = start(lift, "--seconds", "600", "--stale-s", "1")
    try:
        assert process.stderr is not None
        assert "robot: driven (policy)\n" in iter(process.stderr.readline, "")
        (robot,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        os.kill(robot, signal.SIGKILL)
        _, err = process.communicate(timeout=patience(60))
    finally:
        process.kill()
    assert process.returncode == 1, err
    assert "the robot's process ended (signal 9)" in err


def make_policy(file: Path, value: float = 0.25) -> DeployedPolicy:
    """Write a policy of one hinge, which answers its observation with a constant, and load it."""
    return make_constant_policy(file, METADATA, [value])


def _term(name: str, column: int, params: dict[str, Any]) -> dict[str, Any]:
    function = f"mjtrain.mdp.observations:{name}"
    shared = {"scale": 1.0, "clip": None, "history": 1}
    return {"name": name, "columns": [column, column + 1], "func": function, "params": params, **shared}


def _with_scan(**wrong: Any) -> dict[str, Any]:
    params = {"joint": "base", "x": [0.0, 1.0, 1], "y": [0.0, 1.0, 1], "offset": 0.1, **wrong}
    pose = {**METADATA["default_pose"], "base": [0.0] * 7}
    return {**METADATA, "default_pose": pose, "observations": [_term("height_scan", 0, params)]}


METADATA: dict[str, Any] = {
    "format": 3,
    "task": "Knee",
    "control_period_s": 0.02,
    "default_pose": {"knee": [0.5]},
    "joints": {"knee": {"type": "hinge", "range": [-1.0, 1.0]}},
    "sensors": {"up": {"type": "framezaxis", "object": "world", "reference": "imu"}},
    "observations": [_term("joint_pos", 0, {"joint": "knee"}), _term("joint_vel", 1, {"joint": "knee"})],
    "actions": [
        {
            "actuator": "knee_motor",
            "joint": "knee",
            "scale": 2.0,
            "offset": 0.5,
            "relative": False,
            "clip": [-1.0, 1.0],
            "formula": "linear",
            "gain": 30.0,
            "bias": 0.0,
            "kp": 30.0,
            "kd": 2.0,
            "control_range": None,
            "torque_range": [-20.0, 20.0],
            "joint_torque_range": None,
        }
    ],
}


class PlayedRobot:
    """A robot over UDP: it answers each packet with readings, and remembers what it was told."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.told: list[Any] = []
        self.position, self.up, self.damped_by = 0.0, 1.0, ""
        self.velocities = {"knee": np.zeros(1)}
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while True:
            data, address = self._socket.recvfrom(65_507)
            targets, sequence = decode_targets(data)
            self.told.append(targets)
            self._socket.sendto(b"\xff not a packet", address)
            readings = Readings(
                sequence=sequence,
                time_s=time.monotonic(),
                positions={"knee": np.array([self.position])},
                velocities=self.velocities,
                sensors={"up": np.array([0.0, 0.0, self.up])},
                damped_by=self.damped_by,
            )
            self._socket.sendto(encode_readings(readings), address)


def play(policy: DeployedPolicy, played: PlayedRobot, seconds: float = 0.3) -> tuple[str, UdpRobot]:
    robot = UdpRobot("127.0.0.1", played.port)
    limits, phases = Limits(stale_s=60, late_ticks=10_000), Phases(damped_s=0.1, standing_s=0.4, policy_s=seconds)
    return Controller(policy, robot, Commands(policy.metadata, ()), phases, limits, TickLog(None)).run(), robot


def test_a_robot_over_udp_is_led_through_the_states(tmp_path: Path) -> None:
    played = PlayedRobot()
    cause, robot = play(make_policy(tmp_path / "policy.onnx"), played)
    wait_until(lambda: played.told[-1].state == "stop", "stop")
    assert cause == COMPLETED
    assert robot.invalid > 10
    states = [targets.state for targets in played.told]
    assert list(dict.fromkeys(states)) == ["damped", "standing", "policy", "stop"]
    assert not any(targets.drives for targets in played.told if targets.state in ("damped", "stop"))
    way = [targets.drives["knee_motor"].position for targets in played.told if targets.state == "standing"]
    assert way[0] == pytest.approx(0.0), "where it was"
    assert way[-1] == pytest.approx(0.5), "the home pose"
    assert way == sorted(way)
    drive = next(targets.drives["knee_motor"] for targets in played.told if targets.state == "policy")
    assert (drive.kp, drive.kd, drive.position, drive.max_torque) == (30.0, 2.0, 1.0, 20.0)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"up": 0.1}, "--max-tilt"),
        ({"position": 1.2}, "--position-margin"),
        ({"damped_by": "hot motor"}, "damped itself: hot motor"),
        ({"velocities": {}}, "the robot does not report the velocity of joint knee"),
    ],
)
def test_limits_stop_the_robot(change: dict[str, Any], cause: str, tmp_path: Path) -> None:
    played = PlayedRobot()

    def fail() -> None:
        wait_until(lambda: bool(played.told) and played.told[-1].state == "policy", "policy")
        vars(played).update(change)

    threading.Thread(target=fail, daemon=True).start()
    ended, _ = play(make_policy(tmp_path / "policy.onnx"), played, seconds=patience(60))
    assert cause in ended
    wait_until(lambda: played.told[-1].state == "stop", "stop")


def test_a_small_angle_is_not_said_to_be_zero() -> None:
    readings = Readings(positions={}, velocities={}, sensors={"up": np.array([0.0, 0.002, 1.0])})
    metadata = {**METADATA, "sensors": {"up": {"type": "framezaxis", "object": "world", "reference": "base"}}}
    guard = Guard(metadata, Limits(tilt=0.001))
    readings.sensors["up"] /= np.linalg.norm(readings.sensors["up"])
    assert guard.find_exceeded(readings, 0.0, 0) == "the base is tilted by 0.002 rad (--max-tilt 0.001)"


def test_limits_stop_a_robot_within_a_long_control_period(tmp_path: Path) -> None:
    played = PlayedRobot()

    def fail() -> None:
        wait_until(lambda: bool(played.told) and played.told[-1].state == "policy", "policy")
        played.up = 0.1

    threading.Thread(target=fail, daemon=True).start()
    policy = make_constant_policy(tmp_path / "policy.onnx", {**METADATA, "control_period_s": 3600.0}, [0.25])
    robot, phases = UdpRobot("127.0.0.1", played.port), Phases(damped_s=0.1, standing_s=0.1, policy_s=9000)
    controller = Controller(policy, robot, Commands(policy.metadata, ()), phases, Limits(stale_s=60), TickLog(None))
    cause = controller.run()
    assert "--max-tilt" in cause
    states = ["damped", "standing", "policy", "policy"]
    assert [row["state"] for row in controller.rows] == states, "the first period of each, and what ended the run"
    found = report(controller, robot, policy, cause)
    assert (found["max_tilt_rad"], found["policy_s"]) == (pytest.approx(np.arccos(0.1), abs=1e-4), 3600.0)


def test_a_socket_that_fails_ends_the_run_by_stale_readings(tmp_path: Path) -> None:
    policy, played = make_policy(tmp_path / "policy.onnx"), PlayedRobot()
    robot, phases = UdpRobot("127.0.0.1", played.port), Phases(damped_s=0.1, standing_s=0.1, policy_s=patience(60))

    def fail() -> None:
        wait_until(lambda: bool(played.told) and played.told[-1].state == "policy", "policy")
        robot.close()  # the socket raises an OSError from then on, as where the network is down

    threading.Thread(target=fail, daemon=True).start()
    limits = Limits(stale_s=1.0, late_ticks=10_000)
    ended = Controller(policy, robot, Commands(policy.metadata, ()), phases, limits, TickLog(None)).run()
    assert "readings are stale" in ended


class SlowRobot:
    """A robot in this process, and the time: a sleep of the controller takes none. The robot's clock runs slow."""

    def __init__(self, drift: float) -> None:
        self._drift, self._now, self._sequence = drift, 1000.0, 0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds

    def read(self) -> Readings:
        self._sequence += 1
        clock = (1.0 - self._drift) * self._now
        return Readings(sequence=self._sequence, time_s=clock, positions={"knee": np.zeros(1)})

    def write(self, targets: Targets) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("drift", "cause"),
    [(5e-4, COMPLETED), (-5e-4, COMPLETED), (5e-3, "readings are stale")],
    ids=["slow clock", "fast clock", "growing delay"],
)
def test_drift_of_the_robots_clock_is_not_age(
    drift: float, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = {**METADATA, "observations": METADATA["observations"][:1]}
    policy = make_constant_policy(tmp_path / "policy.onnx", metadata, [0.25])
    robot, phases = SlowRobot(drift), Phases(damped_s=0.1, standing_s=0.1, policy_s=80.0)
    monkeypatch.setattr(control_loop, "time", robot)
    controller = Controller(policy, robot, Commands(metadata, ()), phases, Limits(stale_s=0.03), TickLog(None))
    assert cause in controller.run()


class ListeningRobot(SlowRobot):
    """One that notes when it was told something."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.heard_s: list[float] = []

    def write(self, targets: Targets) -> None:
        self.heard_s.append(self._now)


@pytest.mark.parametrize("period_s", [0.019, 0.024, 0.03, 0.08])
def test_targets_come_as_often_as_documented(period_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = {**METADATA, "control_period_s": period_s, "observations": METADATA["observations"][:1]}
    policy, robot = make_constant_policy(tmp_path / "policy.onnx", metadata, [0.25]), ListeningRobot()
    monkeypatch.setattr(control_loop, "time", robot)
    controller = Controller(policy, robot, Commands(metadata, ()), Phases(policy_s=2.0), Limits(), TickLog(None))
    assert controller.run() == COMPLETED
    assert np.diff(robot.heard_s).max() < control_loop.REPEAT_S + 1e-9


class Presser:
    """An operator who presses a key after some looks at what he does."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def update(self, steering: Steering) -> bool:
        self._looks -= 1
        if self._looks == 0:
            steering.press("i")
        return False


def test_each_new_command_has_time_to_settle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = "mjtrain.mdp.targets:joint_distance"
    error = {"func": function, "params": {"command": "goal", "joints": ["knee"]}, "settling_s": 0.1}
    goal = {"size": 1, "rest": [0.0], "controls": {"angle": [0.0, 1.0]}, "errors": {"off": error}}
    reads = [METADATA["observations"][0], _term("command", 1, {"command": "goal"})]
    metadata = {**METADATA, "observations": reads, "commands": {"goal": goal}}
    policy = make_constant_policy(tmp_path / "policy.onnx", metadata, [0.25])
    robot, phases = SlowRobot(0.0), Phases(damped_s=0.0, standing_s=0.0, policy_s=0.5)
    monkeypatch.setattr(control_loop, "time", robot)
    commands = Commands(metadata, (0.5,), Presser(14))
    controller = Controller(policy, robot, commands, phases, Limits(stale_s=60), TickLog(None))
    assert controller.run() == COMPLETED
    changed = [row["commands"]["goal"].item() for row in controller.rows].index(0.6)
    counted = [step for step, row in enumerate(controller.rows) if row["errors"]]
    assert 5 < changed < 20
    assert counted == [*range(5, changed), *range(changed + 5, len(controller.rows))]
    assert controller.rows[-1]["errors"] == {"goal/off": pytest.approx(0.6)}


class LateRobot(SlowRobot):
    """One whose controller once does not run for half a second."""

    def write(self, targets: Targets) -> None:
        if targets.state == "policy" and self._now < 1002.0:
            self._now = 1002.5


def test_the_report_has_what_ended_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_constant_policy(
        tmp_path / "policy.onnx", {**METADATA, "observations": METADATA["observations"][:1]}, [0.25]
    )
    robot, phases = LateRobot(0.0), Phases(damped_s=0.1, standing_s=0.1, policy_s=80.0)
    monkeypatch.setattr(control_loop, "time", robot)
    controller = Controller(policy, robot, Commands(policy.metadata, ()), phases, Limits(stale_s=60), TickLog(None))
    cause = controller.run()
    found = report(controller, robot, policy, cause)
    assert f"{found['missed_ticks']} control periods were missed" in cause
    assert found["late_ms"]["max"] > 1000
    assert found["policy_s"] == pytest.approx(METADATA["control_period_s"]), "it acted once"


def test_an_output_that_is_not_finite_is_never_sent(tmp_path: Path) -> None:
    played = PlayedRobot()
    ended, _ = play(make_policy(tmp_path / "policy.onnx", float("nan")), played)
    assert "not finite" in ended
    wait_until(lambda: played.told[-1].state == "stop", "stop")
    assert "policy" not in [targets.state for targets in played.told]


def test_a_fraction_of_the_torque_is_one_of_the_stall_torque_where_the_motor_has_no_other_bound() -> None:
    curve = {"formula": "limited", "stall_torque": 12.0, "no_load_speed": 20.0}
    row = {**METADATA["actions"][0], **curve, "torque_range": None, "joint_torque_range": None}
    metadata = {**METADATA, "actions": [row]}
    assert Actuation(metadata, 0.5).drives()["knee_motor"].max_torque == 6.0
    assert Actuation(metadata).drives()["knee_motor"].max_torque is None, "it may exceed its stall torque to brake"
    metadata = {**METADATA, "actions": [{**row, "torque_range": [-8.0, 8.0]}]}
    assert Actuation(metadata, 0.5).drives()["knee_motor"].max_torque == 4.0
    assert Actuation(metadata).drives()["knee_motor"].max_torque == 8.0


def test_torque_is_limited_where_the_motor_turns_one_way_only() -> None:
    row = {**METADATA["actions"][0], "torque_range": [0.0, 8.0], "joint_torque_range": [-6.0, 6.0]}
    metadata = {**METADATA, "actions": [row]}
    assert Actuation(metadata).drives()["knee_motor"].max_torque == 6.0
    assert Actuation(metadata, 0.5).drives()["knee_motor"].max_torque == 3.0
    readings = Readings(positions={"knee": np.array([0.1])}, velocities={"knee": np.array([1.0])})
    assert Actuation(metadata).torques(readings)["knee_motor"] == (pytest.approx(30 * 0.4 - 2.0), 6.0)


@pytest.mark.parametrize("missing", ["positions", "velocities"])
def test_torques_of_joints_that_the_robot_does_not_measure_are_unknown(missing: str) -> None:
    measured: dict[str, Any] = {"positions": {"knee": np.zeros(1)}, "velocities": {"knee": np.zeros(1)}}
    assert list(Actuation(METADATA).torques(Readings(**measured))) == ["knee_motor"]
    assert Actuation(METADATA).torques(Readings(**{**measured, missing: {}})) == {}


def test_the_torques_of_two_actuators_of_a_joint_are_both_known() -> None:
    row = METADATA["actions"][0]
    actuation = Actuation({**METADATA, "actions": [{**row, "offset": 5.0}, {**row, "actuator": "knee_spring"}]})
    readings = Readings(positions={"knee": np.zeros(1)}, velocities={"knee": np.zeros(1)})
    assert actuation.torques(readings) == {"knee_motor": (150.0, 20.0), "knee_spring": (15.0, 20.0)}


def test_each_actuator_of_a_joint_is_bounded_by_its_range_unless_the_robot_bounds_torques() -> None:
    row = {**METADATA["actions"][0], "torque_range": None, "joint_torque_range": [-5.0, 5.0]}
    metadata = {**METADATA, "actions": [row, {**row, "actuator": "knee_spring"}]}
    for drives in (Actuation(metadata).drives(), Actuation(metadata).stand(Readings(positions={}, velocities={}), 0.5)):
        assert {name: drive.max_torque for name, drive in drives.items()} == {"knee_motor": 5.0, "knee_spring": 5.0}
    assert Actuation(metadata, robot_bounds=True).drives()["knee_motor"].max_torque is None


def test_a_robot_stands_up_to_the_home_pose_and_not_to_action_0() -> None:
    actuation = Actuation({**METADATA, "actions": [{**METADATA["actions"][0], "offset": 0.0}]})
    way = [
        actuation.stand(Readings(positions={"knee": np.array([0.1])}), part)["knee_motor"].position for part in (0.5, 1)
    ]
    assert way == pytest.approx([0.3, 0.5])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], ["nowhere", "does not exist"]),
        (["--loss", "1.5"], ["--loss 1.5", "at least 0 and less than 1"]),
        (["--seed", "-1"], ["--seed -1", "at least 0"]),
        (["--seed", str(2**63)], [f"--seed {2**63}", f"at most {2**63 - 1}"]),
        *(
            ([f"--{name}", "inf"], [f"--{name} inf: must be ", " and finite"])
            for name in (
                *("seconds", "damped-s", "standing-s", "max-torque", "max-tilt", "position-margin", "stale-s"),
                *("delay-s", "noise", "mass", "friction", "watchdog-s"),
            )
        ),
        (["--seconds", "1e300"], ["--seconds 1e+300", "at most 1e+09"]),
        (["--robot", "udp", "--mass", "2"], ["--mass", "--robot mujoco"]),
        (["--robot", "udp", "--address", "here"], ["--address here", "port"]),
        (["--address", "10.0.0.1:1"], ["--address", "--robot udp"]),
        (["--stale-s", "0"], ["--stale-s 0", "more than 0"]),
    ],
)
def test_a_wrong_request_is_one_line(flags: list[str], said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["nowhere", *flags])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(words in line for words in said), line


def test_a_robot_that_does_not_answer_is_one_line(
    lift: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control_loop, "FIRST_READINGS_S", 0.1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(SystemExit) as end:
            main([str(lift), "--command", "0.45", "0.1", "0.25", "--robot", "udp", "--address", address])
    assert end.value.code == 1
    assert capsys.readouterr().err.splitlines() == ["deploy: no readings arrived from the robot within 0.1 s"]


def test_an_older_export_with_a_base_is_to_be_exported_again() -> None:
    rows = [{**METADATA["actions"][0], "base": "motion_controls", "base_params": {"share": 0}}]
    with pytest.raises(RequestError, match=r"added to motion_controls, .*where share is 0, export the run again"):
        check({**METADATA, "actions": rows}, "policy.onnx")


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ([1], "metadata is not a JSON object"),
        ({**METADATA, "observations": "x"}, "damaged: observations: is the string 'x'; give a list; export"),
        ({**METADATA, "joints": None}, "damaged: joints: is None; give a mapping"),
        ({**METADATA, "motion": "x"}, "damaged: motion: is the string 'x'; give a dict"),
        ({key: METADATA[key] for key in METADATA if key != "task"}, "damaged: task: is missing"),
        ({**METADATA, "control_period_s": float("nan")}, "damaged: control_period_s nan: must be more than 0"),
        ({**METADATA, "actions": ["x"]}, r"damaged: actions\[0\]: is the string 'x'; give a mapping"),
        (
            {**METADATA, "actions": [{**METADATA["actions"][0], "kp": None}]},
            r"actions\[0\]\.kp: is None; give a number",
        ),
        ({**METADATA, "default_pose": {}}, r"actions\[0\]\.joint: default_pose must have one number for knee"),
        (_with_scan(x=[0.0, 1.0]), r"params\.x: has 2 values, a list; give 3"),
        (_with_scan(y=[0.0, 1.0, 0]), r"observations\[0\]\.params\.y 0: must be at least 1"),
        (_with_scan(offset=None), r"params\.offset: is None; give a number"),
        (_with_scan(joint="knee"), r"params\.joint: default_pose must have seven numbers for knee"),
        (_with_scan(x=[0.0, 1.0, 10**9]), r"params: x and y have 1000000000 \* 1 points, and columns has"),
        ({**METADATA, "observations": [_term("joint_pos", 1, {})]}, r"columns: is \[1, 2\]; it must begin at 0"),
        ({**METADATA, "commands": {"to": {"size": 3, "rest": [0.0]}}}, r"to\.rest: has 1 values, but size is 3"),
    ],
)
def test_damaged_metadata_is_named(metadata: Any, words: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.onnx"
    make_policy(file)
    model = onnx.load(file)
    model.metadata_props[0].value = json.dumps(metadata)
    onnx.save(model, file)
    with pytest.raises(RequestError, match=words):
        DeployedPolicy(file)


def test_whole_numbers_are_accepted_as_numbers(tmp_path: Path) -> None:
    metadata = {**METADATA, "control_period_s": 1, "default_pose": {"knee": [0]}}
    assert make_constant_policy(tmp_path / "policy.onnx", metadata, [0.25]).metadata["control_period_s"] == 1


def test_values_of_wrong_kinds_are_refused_in_one_line_or_make_a_controller() -> None:
    errors = {"off": {"func": "mjtrain.mdp.targets:joint_distance", "params": {"command": "goal"}, "settling_s": 1.0}}
    shape = {"size": 3, "columns": ["x", "y", "turn"], "rest": [0.0, 0.0, 0.0], "controls": {"x": [-1.0, np.inf]}}
    change = {"refine": APPROACH, "refine_params": {"acceleration": 1.0, "turn_acceleration": 2.0}}
    goal = {**_term("command", 2, {"command": "goal"}), "columns": [2, 5], "clip": [-5.0, 5.0], "noise": 0.1}
    complete = {**METADATA, "observations": [*METADATA["observations"], goal], "ground": "flat", "base": None}
    complete["commands"] = {"goal": {**shape, **change, "errors": errors}}
    knee = METADATA["actions"][0]
    complete["actions"] = [
        {**knee, "relative": False, "gear": 1.0, "ctrl_index": 0},
        {**knee, "actuator": "servo", "formula": "limited", "stall_torque": 2.0},
        {**knee, "actuator": "hook", "joint": None, "formula": "none", "why": "x", "held_controls": [None, 0.1]},
    ]
    complete["sensors"] = {"up": {"type": "framezaxis", "object": "torso", "reference": None, "on_base": True}}
    check(complete, "policy.onnx")
    wrong = [..., None, "x", True, -1, 0.5, float("nan"), float("inf"), [], ["x"], [[1]], {}, {"x": 1}]
    here = {"knee": np.zeros(1)}
    readings = Readings(positions=here, velocities=here, sensors={"up": np.array([0.0, 0.0, 1.0])})
    refused: list[str] = []
    for damaged in (damaged for value in wrong for damaged in _damage(complete, value)):
        try:
            check(damaged, "policy.onnx")
            commands = Commands(damaged, (0.1, 0.0, 0.0))
            make_observer(damaged, readings, commands.current)
        except RequestError as error:
            refused.append(str(error))
            continue
        commands.advance(1)
        actuation = Actuation(damaged, 0.5)
        actuation.apply(np.zeros(len(damaged["actions"])))
        actuation.stand(readings, 0.5)
        Guard(damaged, Limits()).find_exceeded(readings, 0.0, 0)
    assert len(refused) > 500
    assert not any("\n" in line for line in refused)


def _damage(value: Any, wrong: Any) -> Iterator[Any]:
    """Yield copies of nested values in each of which one is another, or is left out (...)."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        changed = value.copy()
        changed[key] = wrong
        if wrong is ...:
            del changed[key]
        yield changed
        for part in _damage(value[key], wrong):
            changed = value.copy()
            changed[key] = part
            yield changed


@pytest.mark.parametrize(
    ("text", "words"), [("x", "XML parse error"), ("<mujoco/>", "Invalid name 'knee'")], ids=["no model", "another one"]
)
def test_a_model_that_cannot_be_simulated_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    (model := tmp_path / "robot.xml").write_text(text)
    with pytest.raises(RequestError, match=rf"^--model {model}: cannot be simulated \(.*{words}"):
        SimulatedProcess({"model": str(model)}, make_policy(tmp_path / "policy.onnx"))


MOTOR = """
<mujoco>
  <worldbody><body><joint name="knee"/><geom size="0.1"/></body></worldbody>
  <actuator><general name="knee_motor" joint="knee"/></actuator>
</mujoco>
"""


def test_a_policy_that_gives_an_actuator_other_controls_than_it_has_is_one_line(tmp_path: Path) -> None:
    (model := tmp_path / "robot.xml").write_text(MOTOR)
    row = {**METADATA["actions"][0], "formula": "none", "why": "x", "held_controls": [None, 0.1]}
    policy = make_constant_policy(tmp_path / "policy.onnx", {**METADATA, "actions": [row]}, [0.25])
    words = r"\(the policy gives 2 controls to knee_motor, which has 1; export the run again\)$"
    with pytest.raises(RequestError, match=words):
        SimulatedProcess({"model": str(model)}, policy)


def test_of_the_simulated_robot_only_joints_without_a_motor_are_held(tmp_path: Path) -> None:
    cube = '<body name="cube" pos="2 0 1"><freejoint name="cube"/><geom size="0.1"/></body></worldbody>'
    (model := tmp_path / "robot.xml").write_text(MOTOR.replace("</worldbody>", cube))
    pose, row = {"knee": [0.5], "cube": [2.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]}, {**METADATA["actions"][0], "gear": 1.0}
    metadata = {**METADATA, "sensors": {}, "actions": [row], "default_pose": pose}
    process = SimulatedProcess({"model": str(model)}, make_constant_policy(tmp_path / "policy.onnx", metadata, [0.25]))
    robot = UdpRobot("127.0.0.1", process.port)

    def has_moved() -> bool:
        robot.write(Targets(state="standing", drives={"knee_motor": Drive(kp=30.0, kd=2.0, position=1.0)}))
        readings = robot.read()
        if readings is None or readings.positions["knee"][0] < 0.8:
            return False
        assert readings.positions["cube"] == pytest.approx(pose["cube"], abs=1e-3)
        return True

    try:
        wait_until(has_moved, "a knee that moves")
    finally:
        process.close()


def test_a_command_has_the_size_that_the_metadata_says() -> None:
    term = _term("command", 2, {"command": "velocity"})
    described = {"size": 3, "columns": ["ahead", "left", "turn"], "rest": [0.0, 0.0, 0.0]}
    limits = {"acceleration": 2.0, "turn_acceleration": 4.0}
    described |= {"refine": "mjtrain.mdp.velocity:approach", "refine_params": limits}
    metadata = {**METADATA, "observations": [term], "commands": {"velocity": described}}
    assert Commands(metadata, ()).current["velocity"].tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(RequestError, match=r"--command 1: give .*ahead; left; turn"):
        Commands(metadata, (1.0,))
    with pytest.raises(RequestError, match=r"^--command nan 0 0: each must be finite$"):
        Commands(metadata, (float("nan"), 0.0, 0.0))
    assert Commands(metadata, (9.0, 0.0, 0.0)).notices == [], "an older export has no bounds"
    described["controls"] = {"ahead": [-1.0, 1.0], "left": [-0.5, 0.5], "turn": [-1.0, 1.0]}
    assert Commands(metadata, (1.0, -0.5, 0.0)).notices == []
    assert Commands(metadata, (9.0, 0.0, -2.0)).notices == [
        f"--command 9 0 -2: {words}, the bounds that the task has for it"
        for words in ("ahead 9 is outside of -1 to 1", "turn -2 is outside of -1 to 1")
    ]
    commands = Commands(metadata, (0.6, 0.8, -1.0))
    commands.advance(1)
    assert commands.current["velocity"] == pytest.approx([0.024, 0.032, -0.08]), "2 m/s^2 and 4 rad/s^2 for 0.02 s"
    commands.advance(100)
    assert commands.current["velocity"] == pytest.approx([0.6, 0.8, -1.0])


def test_a_policy_that_tracks_a_motion_needs_no_command() -> None:
    """The robot reports what the policy sees of the motion; its frames are not commanded by hand."""
    func = "mjtrain.mdp.tracking:motion_anchor_ori_b"
    metadata = {**METADATA, "motion": {"command": "motion"}, "commands": {"motion": {"size": 2, "rest": None}}}
    metadata["observations"] = [_term("ori", 0, {"command": "motion"}) | {"func": func}]
    check(metadata, "policy.onnx")
    commands = Commands(metadata, ())
    with pytest.raises(RequestError, match=r"the robot must report the observations ori .* as values"):
        make_observer(metadata, Readings(), commands.current)
    make_observer(metadata, Readings(values={"ori": np.array([0.5])}), commands.current)
    with pytest.raises(RequestError, match=r"^--command 1: give motion: 2 values$"):
        Commands(metadata, (1.0,))


@pytest.mark.parametrize("values", [(), (3.0, 0.0)])
def test_commands_of_a_shipped_policy_that_tracks_a_motion(values: tuple[float, ...]) -> None:
    metadata = json.loads((mjtrain_policies.FOLDER / "Quadruped-Track" / "policy.json").read_text())
    assert Commands(metadata, values).current["motion"].tolist() == [*(values or (0.0, 0.0))]


def test_frames_of_a_motion_may_be_left_out_of_a_command_beside_another_one() -> None:
    terms = [_term("ori", 0, {"command": "motion"}), _term("command", 1, {"command": "velocity"})]
    described = {"motion": {"size": 2, "rest": None}, "velocity": {"size": 3, "rest": [0.0, 0.0, 0.0]}}
    metadata = {**METADATA, "motion": {"command": "motion"}, "observations": terms, "commands": described}
    for given, frames, velocity in (
        ((), [0.0, 0.0], [0.0, 0.0, 0.0]),
        ((1.0, 0.0, 0.5), [0.0, 0.0], [1.0, 0.0, 0.5]),
        ((3.0, 0.0, 1.0, 0.0, 0.5), [3.0, 0.0], [1.0, 0.0, 0.5]),
    ):
        wanted = Commands(metadata, given).wanted
        assert (wanted["motion"].tolist(), wanted["velocity"].tolist()) == (frames, velocity)
    with pytest.raises(RequestError, match=r"^--command 1: give velocity: 3 values$"):
        Commands(metadata, (1.0,))


def test_a_commanded_quaternion_is_made_one_of_length_1() -> None:
    columns = ["x, m, world", *(f"{axis} of the quaternion, world" for axis in "wxyz")]
    term = _term("command", 2, {"command": "pose"})
    metadata = {**METADATA, "observations": [term], "commands": {"pose": {"size": 5, "columns": columns}}}
    assert Commands(metadata, (9.0, 0.0, 3.0, 0.0, -4.0)).current["pose"].tolist() == [9.0, 0.0, 0.6, 0.0, -0.8]
    with pytest.raises(RequestError, match=r"^--command 9 0 0 0 0: the quaternion of pose has length 0; give one of"):
        Commands(metadata, (9.0, 0.0, 0.0, 0.0, 0.0))


HUGE = b"1" + b"0" * 400
"""A whole number that no float can hold."""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"v":2,"seq":1}',
        b'{"v":1,"seq":1,"state":"policy","drives":{"a":[1,"x"]}}',
        b'{"v":1,"seq":1,"state":"policy","drives":{"a":[%b]}}' % HUGE,
        b'{"v":1,"seq":1,"state":"policy","drives":{"a":{"kp":%b,"kd":0,"position":0,"torque":0}}}' % HUGE,
        b'{"v":1,"seq":1,"state":"policy","drives":{"a":[NaN]}}',
        b'{"v":1,"seq":1,"state":"policy","drives":{"a":[-Infinity]}}',
        b"[" * 10_000,
    ],
    ids=lambda data: data[:60].decode(),
)
def test_what_is_not_a_packet_is_refused(data: bytes) -> None:
    with pytest.raises(PacketError):
        decode_targets(data)


@pytest.mark.parametrize(
    "fields",
    [
        b'"time":%b' % HUGE,
        b'"time":0,"positions":{"knee":[%b]}' % HUGE,
        b'"time":0,"positions":{"knee":[]}',
        b'"time":0,"velocities":{"knee":[0,0]}',
        b'"time":0,"truth":5',
        b'"time":0,"truth":[]',
        b'"time":0,"truth":{"positions":{"knee":[]}}',
    ],
    ids=lambda fields: fields[:60].decode(),
)
def test_readings_that_are_not_valid_are_refused(fields: bytes) -> None:
    with pytest.raises(PacketError):
        decode_readings(b'{"v":1,"seq":1,%b}' % fields)


def test_the_place_of_a_free_joint_may_come_without_its_turn() -> None:
    readings = decode_readings(b'{"v":1,"seq":1,"time":0,"positions":{"knee":[0.1],"cube":[1,2,3]}}')
    assert readings.positions["cube"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("width", [0, 2, 4])
def test_an_up_that_is_not_a_vector_ends_the_run(width: int) -> None:
    cause = Guard(METADATA, Limits()).find_exceeded(Readings(sensors={"up": np.ones(width)}), 0.0, 0)
    assert cause == f"the robot reports {width} numbers of up instead of 3"


def test_the_simulated_robot_and_its_model_import_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("queue", "random", "statistics", "tempfile"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError(__file__)")
    (model := tmp_path / "robot.xml").write_text(MOTOR)
    row = {**METADATA["actions"][0], "formula": "none", "why": "x", "held_controls": [None]}
    policy = make_constant_policy(tmp_path / "policy.onnx", {**METADATA, "sensors": {}, "actions": [row]}, [0.25])
    monkeypatch.chdir(tmp_path)
    SimulatedProcess({"model": str(model)}, policy).close()
    assert _find_model(mjtrain_policies.FOLDER / "Cartpole-Balance", tmp_path).stat().st_size > 0


def test_the_tilt_of_tools_and_objects_is_not_that_of_the_base() -> None:
    up = {"type": "framezaxis", "object": "world", "reference": "tool", "on_base": False}
    height = {"func": "mjtrain.mdp.root:base_height", "params": {"joint": "cube"}}
    level, fallen = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    pose = {"cube": level, "root": level}
    metadata = {**METADATA, "sensors": {"up": up}, "observations": [height], "default_pose": pose}
    tool, cube = {"up": np.array([0.0, 0.0, -1.0])}, {"cube": np.array(fallen)}
    arm, rover = (Guard({**metadata, "base": base}, Limits()) for base in (None, "root"))
    assert arm.find_exceeded(Readings(sensors=tool, positions=cube), 0.0, 0) is None
    assert rover.find_exceeded(Readings(sensors=tool, positions={**cube, "root": np.array(level)}), 0.0, 0) is None
    tilted = Readings(positions={"root": np.array(fallen)})
    assert rover.find_exceeded(tilted, 0.0, 0) == "the base is tilted by 3.14 rad (--max-tilt 1)"
    earlier = Guard(metadata, Limits()), Guard({**metadata, "sensors": {}}, Limits())
    assert all(
        "tilted" in (guard.find_exceeded(Readings(sensors=tool, positions=cube), 0, 0) or "") for guard in earlier
    )


def test_the_tilt_is_that_of_the_free_joint_where_the_robot_reports_no_sensor_of_up() -> None:
    up = {"type": "framezaxis", "object": "world", "reference": "imu", "on_base": True}
    guard = Guard({**METADATA, "sensors": {"up": up}, "base": "root"}, Limits())
    fallen, level = np.array([0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]), {"up": np.array([0.0, 0.0, 1.0])}
    cause = guard.find_exceeded(Readings(positions={"root": fallen}), 0.0, 0)
    assert cause == "the base is tilted by 3.14 rad (--max-tilt 1)"
    assert guard.find_exceeded(Readings(positions={"root": fallen}, sensors=level), 0.0, 0) is None, "up decides"
    assert guard.find_exceeded(Readings(positions={"root": fallen[:3]}), 0.0, 0) is None, "its place alone"


@pytest.mark.parametrize(
    ("angle", "is_within"), [(0.0, True), (0.55, True), (-0.55, True), (0.65, False), (-0.65, False)]
)
def test_the_range_of_a_ball_joint_is_of_its_angle(angle: float, is_within: bool) -> None:
    guard = Guard({**METADATA, "joints": {"knee": {"type": "ball", "range": [0.0, 0.5]}}}, Limits())
    knee = np.array([np.cos(angle / 2), 0.0, np.sin(angle / 2), 0.0])
    for sign in (-1, 1):
        cause = guard.find_exceeded(Readings(positions={"knee": sign * knee}), 0.0, 0)
        assert cause == (None if is_within else "joint knee is at 0.65, outside of 0 to 0.5 (--position-margin 0.1)")


@pytest.mark.parametrize("controls", [b"", b"1,2", HUGE])
def test_the_simulated_robot_ignores_drives_that_do_not_fit_an_actuator(controls: bytes, tmp_path: Path) -> None:
    (model := tmp_path / "robot.xml").write_text(MOTOR)
    row = {**METADATA["actions"][0], "formula": "none", "why": "x", "held_controls": [None]}
    metadata = {**METADATA, "sensors": {}, "actions": [row]}
    process = SimulatedProcess({"model": str(model)}, make_constant_policy(tmp_path / "policy.onnx", metadata, [0.25]))
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            packet = b'{"v":1,"seq":1,"state":"policy","drives":{"knee_motor":[%b]}}' % controls
            sender.sendto(packet, ("127.0.0.1", process.port))
        robot = UdpRobot("127.0.0.1", process.port)
        robot.write(Targets(state="damped"))
        wait_until(lambda: robot.read() is not None or process.find_end() is not None, "readings")
        assert process.find_end() is None
    finally:
        process.close()
