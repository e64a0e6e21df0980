"""Unitree's robots through the vendor's SDK: over DDS with a process that plays the robot, and what needs no SDK."""

import contextlib
import copy
import functools
import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mjtrain.cli.deploy import main
from mjtrain.deployment.actuation import Actuation
from mjtrain.deployment.control_loop import COMPLETED, Guard, Limits
from mjtrain.deployment.robot import Drive, Targets
from mjtrain.deployment.unitree import DAMPING, MOTORS, Motors, UnitreeRobot
from mjtrain.runtime.errors import RequestError
from support.constant_policy import make_constant_policy
from support.machine import patience, wait_until
from support.metadata import describe_task

TESTS = Path(__file__).parents[1]
TASKS = {"unitree-go2": "Go2-Velocity-Flat", "unitree-g1": "Humanoid-Velocity-Flat"}
KINDS = {"unitree-go2": "go", "unitree-g1": "hg"}
DOMAIN = str(1 + os.getpid() % 200)
"""DDS domain of this worker: processes of another one do not hear each other."""

GENEROUS = ["--late-ticks", "100000", "--stale-s", "60", "--watchdog-s", "60"]
"""The machine may be busy."""

needs_sdk = pytest.mark.skipif(
    importlib.util.find_spec("unitree_sdk2py") is None, reason="needs unitree_sdk2py: pip install 'mjtrain[unitree]'"
)


@functools.cache
def describe_once(task: str) -> dict[str, Any]:
    return describe_task(task)[1]


def describe(robot: str, *, seen: bool = True) -> dict[str, Any]:
    """Return the metadata of a task; not seen: without what observes the velocity of the base."""
    metadata = copy.deepcopy(describe_once(TASKS[robot]))
    if not seen:
        begin, terms = 0, []
        for term in metadata["observations"]:
            if "base_velocity" not in term.get("sensors", ()):
                end = begin + term["columns"][1] - term["columns"][0]
                terms.append({**term, "columns": [begin, end]})
                begin = end
        gravity = {"name": "gravity", "func": "mjtrain.mdp.root:projected_gravity", "params": {"joint": "base"}}
        terms.append({**terms[0], **gravity, "columns": [begin, begin + 3], "scale": 1.0})
        metadata["observations"] = terms
    return metadata


@dataclass
class Motor:
    q: float = 0.0
    dq: float = 0.0


@dataclass
class Imu:
    quaternion: tuple[float, ...] = (0.9689124, 0.0, 0.2474040, 0.0)
    gyroscope: tuple[float, ...] = (0.1, -0.2, 0.3)
    accelerometer: tuple[float, ...] = (0.0, 0.0, 9.81)


@dataclass
class State:
    motor_state: list[Motor] = field(default_factory=lambda: [Motor() for _ in range(35)])
    imu_state: Imu = field(default_factory=Imu)


@pytest.mark.parametrize("robot", TASKS)
def test_motors_are_found_by_the_names_of_their_joints(robot: str) -> None:
    metadata, state = describe(robot), State()
    for index, motor in enumerate(state.motor_state):
        motor.q, motor.dq = 0.01 * index, -0.1 * index
    motors = Motors(robot, metadata)
    readings = motors.read(state, 3, 1.5, "")
    rows = metadata["actions"]
    drives = {row["actuator"]: Drive(kp=1.0, kd=0.1, position=float(place)) for place, row in enumerate(rows)}
    commands = motors.command(Targets(state="policy", drives=drives), state)
    assert len(commands) == len(MOTORS[robot])
    for place, row in enumerate(rows):
        index = MOTORS[robot].index(row["joint"].removesuffix("_joint"))
        assert commands[index].position == place
        assert readings.positions[row["joint"]] == pytest.approx([0.01 * index])
        assert readings.velocities[row["joint"]] == pytest.approx([-0.1 * index])
    others = [drive for drive in commands if drive.kp == 0.0]
    assert others == [Drive(kp=0.0, kd=DAMPING)] * (len(commands) - len(rows))
    assert (readings.sequence, readings.time_s) == (3, 1.5)


def test_the_vendors_order() -> None:
    go2, g1 = MOTORS["unitree-go2"], MOTORS["unitree-g1"]
    assert [go2.index(name) for name in ("FR_hip", "FR_calf", "FL_hip", "RR_hip", "RL_hip", "RL_calf")] == [
        *(0, 2, 3, 6, 9, 11)
    ]
    assert (len(g1), g1.index("left_knee"), g1.index("right_hip_pitch"), g1.index("waist_pitch")) == (29, 3, 6, 14)
    assert [g1.index(f"{side}_wrist_yaw") for side in ("left", "right")] == [21, 28]


def test_every_motor_brakes_without_drives() -> None:
    metadata = describe("unitree-g1")
    commands = Motors("unitree-g1", metadata).command(Targets(state="damped"), State())
    damping = {row["joint"].removesuffix("_joint"): row["kd"] for row in metadata["actions"]}
    assert commands == [Drive(kp=0.0, kd=damping.get(name, DAMPING)) for name in MOTORS["unitree-g1"]]


@pytest.mark.parametrize("target", [-2.0, 0.1, 2.0])
def test_the_torque_is_within_its_bound(target: float) -> None:
    state, drive = State(), Drive(kp=50.0, kd=2.0, position=target, max_torque=23.7)
    state.motor_state[3] = Motor(q=0.05, dq=1.5)
    (command,) = [
        each
        for each in Motors("unitree-go2", describe("unitree-go2")).command(
            Targets(state="policy", drives={"FL_hip": drive}), state
        )
        if each.kp
    ]
    wanted = 50.0 * (target - 0.05) - 2.0 * 1.5
    sent = command.kp * (command.position - 0.05) - command.kd * 1.5 + command.torque
    assert sent == pytest.approx(np.clip(wanted, -23.7, 23.7))
    assert (command.kp, command.kd) == (50.0, 2.0)


def test_the_imu_gives_what_it_measures_of_the_base() -> None:
    metadata = describe("unitree-go2")
    readings = Motors("unitree-go2", metadata).read(State(), 1, 0.0, "hot")
    assert readings.sensors["up"] == pytest.approx([-np.sin(0.5), 0.0, np.cos(0.5)], abs=1e-6)
    assert readings.sensors["base_angular_velocity"].tolist() == [0.1, -0.2, 0.3]
    assert set(readings.sensors) == {"up", "base_angular_velocity"}, "no sensor measures the velocity of the base"
    assert readings.damped_by == "hot"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"joint": "tail"}, "no motor for joint tail; it has FR_hip, FR_thigh"),
        ({"formula": "none", "why": "it is a muscle"}, "actuator FL_hip has no gains to send, because it is a muscle"),
        ({"joint": "FR_hip"}, "several actuators drive joint FR_hip"),
    ],
)
def test_what_motors_cannot_do_is_refused(changes: dict[str, str], said: str) -> None:
    metadata = describe("unitree-go2")
    metadata["actions"][0] |= changes
    with pytest.raises(RequestError, match=said):
        Motors("unitree-go2", metadata)


@pytest.mark.parametrize("target", [-9.0, 9.0])
def test_each_direction_has_its_own_bound_of_the_torque(target: float) -> None:
    metadata = describe("unitree-go2")
    (row,) = (row for row in metadata["actions"] if row["joint"] in ("FL_hip", "FL_hip_joint"))
    row |= {"torque_range": [-4.0, 12.0], "joint_torque_range": [-20.0, 10.0]}
    limit = Actuation(metadata, 0.5).max_torque(row)
    drive = Drive(kp=50.0, kd=0.0, position=target, max_torque=limit)
    targets = Targets(state="policy", drives={row["actuator"]: drive})
    (command,) = (each for each in Motors("unitree-go2", metadata).command(targets, State()) if each.kp)
    assert command.kp * command.position + command.torque == pytest.approx(-2.0 if target < 0 else 5.0)


def test_without_the_sdk_the_error_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "unitree_sdk2py", None)
    metadata = describe("unitree-go2")
    with pytest.raises(RequestError, match=r"unitree-go2 needs unitree_sdk2py; pip install 'mjtrain\[unitree\]'"):
        UnitreeRobot("unitree-go2", "lo", metadata, 0.08)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--robot", "unitree-go2"], "give the network interface by --address"),
        (["--robot", "unitree-g1", "--address", "lo", "--mass", "2"], "--mass: is for --robot mujoco"),
        (["--robot", "unitree-go2", "--address", "eth0:abc"], "--address eth0:abc: DDS domain 'abc' is not a number"),
        (["--address", "eth0"], "--address eth0: is not for --robot mujoco; choose --robot udp, unitree-go2"),
        (["--robot", "udp", "--watchdog-s", "1"], "--watchdog-s: is not for --robot udp, which decides"),
    ],
)
def test_a_wrong_request_is_one_line(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["nowhere", *flags])
    assert end.value.code == 2
    assert said in capsys.readouterr().err


@contextlib.contextmanager
def played(robot: str, *flags: str) -> Generator[Iterator[dict[str, Any]]]:
    """Play a robot in another process, and give the rows that it writes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "support.played_unitree", KINDS[robot], DOMAIN, *flags],
        cwd=TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        rows = (json.loads(line) for line in process.stdout)
        assert next(rows)["is"] == "free"
        yield rows
    finally:
        process.kill()
        process.wait()


def run_deploy(folder: Path, robot: str, metadata: dict[str, Any], *flags: str) -> subprocess.CompletedProcess[str]:
    make_constant_policy(folder / "policy.onnx", metadata, np.linspace(-0.3, 0.3, len(metadata["actions"])).tolist())
    command = [sys.executable, "-m", "mjtrain.cli.deploy", str(folder), "--robot", robot, "--address", f"lo:{DOMAIN}"]
    return subprocess.run(
        [*command, *GENEROUS, "--json", *flags], capture_output=True, text=True, timeout=patience(60), check=False
    )


@needs_sdk
@pytest.mark.process
@pytest.mark.parametrize("robot", TASKS)
def test_a_policy_drives_the_motors_over_dds(robot: str, tmp_path: Path) -> None:
    metadata, log = describe(robot, seen=False), tmp_path / "ticks.jsonl"
    with played(robot) as rows:
        done = run_deploy(tmp_path, robot, metadata, "--seconds", "3", "--standing-s", "0.5", "--log", str(log))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["ended"] == COMPLETED
        damped, driven, end = next(rows), next(rows), next(rows)
    assert [row["is"] for row in (damped, driven, end)] == ["damped", "driven", "damped"]
    assert damped["mode"] == [1] * len(MOTORS[robot]) + [0] * (len(damped["mode"]) - len(MOTORS[robot]))
    for action, row in zip(np.linspace(-0.3, 0.3, len(metadata["actions"])), metadata["actions"], strict=True):
        index = MOTORS[robot].index(row["joint"].removesuffix("_joint"))
        assert driven["kp"][index] == pytest.approx(row["kp"])
        assert driven["kd"][index] == pytest.approx(row["kd"])
        assert end["q"][index] == pytest.approx(row["offset"] + row["scale"] * action, abs=0.02), row["joint"]
    last = json.loads(log.read_text().splitlines()[-1])
    seen = {term["name"]: np.array(last["observation"][slice(*term["columns"])]) for term in metadata["observations"]}
    assert seen["gravity"] == pytest.approx([np.sin(0.5), 0.0, -np.cos(0.5)], abs=1e-5)
    assert seen["turning"] == pytest.approx([0.05, -0.1, 0.15])


@needs_sdk
@pytest.mark.process
def test_a_policy_that_reads_more_than_the_robot_measures_is_refused(tmp_path: Path) -> None:
    with played("unitree-go2", "--deaf"):  # the built-in controller is not even asked for the motors
        done = run_deploy(tmp_path, "unitree-go2", describe("unitree-go2"))
    assert done.returncode == 2
    assert "the robot does not report the sensor base_velocity" in done.stderr
    height = describe("unitree-go2", seen=False)
    height["observations"][-1] |= {"name": "height", "func": "mjtrain.mdp.root:base_height"}
    height["observations"][-1]["columns"][1] -= 2
    with played("unitree-go2", "--deaf"):
        done = run_deploy(tmp_path, "unitree-go2", height)
    assert done.returncode == 2
    assert "the robot does not measure all that the observation height reads" in done.stderr


@needs_sdk
@pytest.mark.process
def test_a_robot_that_does_not_answer_is_refused(tmp_path: Path) -> None:
    metadata = describe("unitree-go2", seen=False)
    done = run_deploy(tmp_path, "unitree-go2", metadata)
    assert (done.returncode, "no message on rt/lowstate" in done.stderr) == (2, True), done.stderr
    with played("unitree-go2", "--deaf") as rows:
        done = run_deploy(tmp_path, "unitree-go2", metadata)
    assert (done.returncode, "motion switcher does not answer" in done.stderr) == (2, True), done.stderr
    assert list(rows) == [], "nothing is sent while the built-in controller drives"


@needs_sdk
@pytest.mark.process
def test_a_built_in_controller_that_keeps_the_motors_is_asked_again_and_then_left_alone(tmp_path: Path) -> None:
    metadata = describe("unitree-go2", seen=False)
    with played("unitree-go2", "--deny", "1") as rows:
        done = run_deploy(tmp_path, "unitree-go2", metadata, "--seconds", "0", "--standing-s", "0")
        assert done.returncode == 0, done.stderr
        assert next(rows)["is"] == "damped"
    with played("unitree-go2", "--deny", "1000") as rows:
        done = run_deploy(tmp_path, "unitree-go2", metadata)
    assert done.returncode == 2
    assert "does not release the motors (mode normal, code 7004 for the last request)" in done.stderr
    assert list(rows) == []


@needs_sdk
@pytest.mark.process
def test_a_robot_whose_start_is_interrupted_keeps_its_built_in_controller(tmp_path: Path) -> None:
    metadata = describe("unitree-go2", seen=False)
    make_constant_policy(tmp_path / "policy.onnx", metadata, [0.0] * len(metadata["actions"]))
    before = signal.getsignal(signal.SIGTERM)

    def interrupt() -> None:
        wait_until(lambda: signal.getsignal(signal.SIGTERM) != before, "a command that hears signals")
        os.kill(os.getpid(), signal.SIGINT)

    with played("unitree-go2", "--deny", "2") as rows:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(SystemExit) as end:
            main([str(tmp_path), "--robot", "unitree-go2", "--address", f"lo:{DOMAIN}", *GENEROUS])
    assert end.value.code == 128 + signal.SIGINT
    assert list(rows) == [], "its motors still have it"


class StoppedLater(list[int]):
    """Signals of which the first one arrives after the first question."""

    def __len__(self) -> int:
        self.asked = getattr(self, "asked", 0) + 1
        return self.asked - 1


@needs_sdk
@pytest.mark.process
def test_motors_that_are_released_after_a_signal_brake() -> None:
    with played("unitree-go2", "--late", "3") as rows:
        robot = UnitreeRobot("unitree-go2", f"lo:{DOMAIN}", describe("unitree-go2", seen=False), watchdog_s=60)
        try:
            robot.take_motors(StoppedLater())
            assert next(rows)["is"] == "damped"
        finally:
            robot.close()


@needs_sdk
@pytest.mark.process
def test_motors_brake_where_the_controller_says_nothing() -> None:
    metadata = describe("unitree-go2", seen=False)
    driven = Targets(state="policy", drives={"FL_hip": Drive(kp=50.0, kd=1.5, position=0.2)})
    with played("unitree-go2") as rows:
        robot = UnitreeRobot("unitree-go2", f"lo:{DOMAIN}", metadata, watchdog_s=0.5)
        try:
            robot.take_motors()
            assert next(rows)["is"] == "damped"
            robot.write(driven)
            assert next(rows)["is"] == "driven"
            assert next(rows)["is"] == "damped"
            wait_until(lambda: (readings := robot.read()) and readings.damped_by == "no targets for 0.5 s", "the cause")
            robot.write(driven)
            readings = robot.read()
            assert readings is not None
            assert readings.damped_by, "it obeys again after the controller has been damped"
            robot.write(Targets(state="damped"))
            robot.write(driven)
            assert next(rows)["is"] == "driven"
        finally:
            robot.close()
        assert next(rows)["is"] == "damped"


@needs_sdk
@pytest.mark.process
def test_a_thread_that_cannot_send_says_so() -> None:
    metadata = describe("unitree-go2", seen=False)
    driven = Targets(state="policy", drives={"FL_hip": Drive(kp=50.0, kd=1.5, position=0.2)})
    with played("unitree-go2") as rows:
        robot = UnitreeRobot("unitree-go2", f"lo:{DOMAIN}", metadata, watchdog_s=60)
        robot.take_motors()
        assert next(rows)["is"] == "damped"
        robot.write(driven)
        assert next(rows)["is"] == "driven"
        robot._publisher.Close()  # each try raises an error of the SDK from now on
        wait_until(lambda: robot.read().damped_by, "the cause")
        cause = Guard(metadata, Limits()).find_exceeded(robot.read(), 0.0, 0)
        assert cause is not None
        assert "the robot damped itself: commands cannot be sent: " in cause
        assert "no attribute" in cause, "what the SDK raised first"
        robot.write(driven)
        assert robot.read().damped_by, "it obeys again after the controller has been damped"
        with pytest.raises(AttributeError):  # of the SDK: it was closed before
            robot.close()
    assert not any("_send" in thread.name for thread in threading.enumerate())


@needs_sdk
@pytest.mark.process
def test_a_run_stops_where_dds_sends_no_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The SDK prints each failure, from another thread: standard output still has nothing but the report."""
    metadata = describe("unitree-go2", seen=False)
    make_constant_policy(tmp_path / "policy.onnx", metadata, [0.0] * len(metadata["actions"]))

    def delete_writer(rows: Iterator[dict[str, Any]]) -> None:
        assert [next(rows)["is"], next(rows)["is"]] == ["damped", "driven"]
        (robot,) = (each for each in gc.get_objects() if type(each) is UnitreeRobot and not each._closed.is_set())
        writer = robot._publisher._ChannelPublisher__channel._Channel__writer._Writer__writer
        writer._delete(writer._ref)

    with played("unitree-go2") as rows:
        threading.Thread(target=delete_writer, args=(rows,), daemon=True).start()
        flags = ["--robot", "unitree-go2", "--address", f"lo:{DOMAIN}", "--json", *GENEROUS]
        with pytest.raises(SystemExit) as end:
            main([str(tmp_path), *flags, "--seconds", "600", "--standing-s", "0.2"])
    found = capsys.readouterr()
    assert end.value.code == 1
    assert json.loads(found.out)["ended"] == "the robot damped itself: commands cannot be sent: the SDK has printed why"
    assert "DDSException" in found.err


@needs_sdk
@pytest.mark.process
def test_a_full_disk_leaves_no_thread_that_sends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metadata = describe("unitree-go2", seen=False)
    make_constant_policy(tmp_path / "policy.onnx", metadata, [0.0] * len(metadata["actions"]))
    flags = ["--robot", "unitree-go2", "--address", f"lo:{DOMAIN}", "--log", "/dev/full", *GENEROUS]
    with played("unitree-go2"), pytest.raises(SystemExit) as end:
        main([str(tmp_path), *flags, "--seconds", "0", "--standing-s", "0"])
    assert end.value.code == 1
    assert "No space left on device" in capsys.readouterr().err
    assert not any("_send" in thread.name for thread in threading.enumerate())
