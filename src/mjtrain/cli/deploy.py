"""The command deploy."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from mjtrain.cli.command import command, take_first
from mjtrain.cli.parsing import parse
from mjtrain.config.limits import AT_LEAST_0, AtLeast0, Duration, Positive, Range, Time, find_option_problems
from mjtrain.runtime.errors import RequestError, refuse
from mjtrain.runtime.processes import module_path
from mjtrain.runtime.rank import check_seed
from mjtrain.runtime.standard_streams import printable


@dataclass(frozen=True, kw_only=True)
class Options:
    """Run an exported policy on a robot at the policy's rate: damped, standing up, policy, damped again.

    POLICY is policy.onnx, the folder of an export, a run directory that was exported, or a shared policy: the folder or
    .zip file that mjtrain push wrote, its URL, or pretrained:TASK. Without --robot the robot is simulated by plain
    MuJoCo in a separate process. The command ends with status 1 if a limit stopped the robot.
    """

    robot: Literal["mujoco", "udp", "unitree-go2", "unitree-g1"] = "mujoco"
    """mujoco: a simulated robot in a separate process, in real time; udp: what answers at --address; unitree-go2 and
    unitree-g1: through the vendor's SDK. The last two were never run on a robot: see the guide."""

    address: str = "127.0.0.1:9870"
    """Host and port of --robot udp. For Unitree's robots the network interface, such as eth0, with the DDS domain after
    a colon where it is not 0. Nothing authenticates the packets: name another machine only in a network that you
    trust."""

    command: tuple[float, ...] = ()
    """What the policy is commanded to do, in the order of the metadata: a velocity (m/s, m/s, rad/s), a place (m), a
    quaternion (w, x, y, z), or place and quaternion. Default: to stand, where the command is a velocity."""

    drive: Literal["none", "keyboard", "gamepad"] = "none"
    """Steer the command while the policy acts. keyboard: by keys of this terminal (i and k: ahead and back; j and l:
    left and right; u and o: turn; m: stand; x: stop the robot); gamepad: by its sticks, and any button stops the
    robot."""

    gamepad: str = "/dev/input/js0"
    """Device of --drive gamepad, by Linux's joystick interface."""

    seconds: Time = 60.0
    """How long the policy acts, in seconds."""

    damped_s: Time = 0.5
    """How long the robot is damped first, in seconds."""

    standing_s: Time = 2.0
    """How long it takes to the home pose, in seconds."""

    max_torque: Positive = 1.0
    """Largest torque, as a fraction of what the model allows. The motors keep within it."""

    max_tilt: Positive = 1.0
    """Tilt of the base at which the robot is stopped, in rad."""

    position_margin: AtLeast0 = 0.1
    """How far a joint may be outside its range, in rad or m, before the robot is stopped."""

    stale_s: Duration = 0.07
    """Age of the newest readings at which the robot is stopped, in seconds."""

    late_ticks: Annotated[int, AT_LEAST_0] = 5
    """Control periods missed in a row after which the robot is stopped."""

    model: str | None = None
    """Model of --robot mujoco, .mjb or MJCF. Default: model.mjb beside the policy, or that of a shared policy."""

    delay_s: Time = 0.0
    """--robot mujoco: how much later readings arrive, in seconds."""

    noise: AtLeast0 = 0.0
    """--robot mujoco: noise of joints and sensors, as a multiple of that in the training."""

    loss: Annotated[float, Range(least=0, below=1)] = 0.0
    """--robot mujoco: fraction of the packets that are lost, in each direction."""

    mass: Positive = 1.0
    """--robot mujoco: factor of all masses and inertias."""

    friction: Positive = 1.0
    """--robot mujoco: factor of the sliding friction."""

    held: bool = True
    """--robot mujoco: joints without a motor, such as the base, stay where they are until the policy acts. With
    --no-held they are free from the beginning."""

    watchdog_s: Duration = 0.08
    """Time without targets after which the motors only brake, in seconds. With --robot udp the robot decides."""

    seed: int = 0
    """--robot mujoco: seed of noise and losses."""

    realtime: bool = False
    """Ask the kernel to run controller and simulated robot before all other processes (SCHED_FIFO)."""

    log: str | None = None
    """File for one JSON object per control period: state, timing, observation, action, errors. Default: none."""

    json: bool = False
    """Print the report as JSON."""


@command("deploy")
def main(argv: list[str]) -> None:
    """Run the command; status 0, 1 if a limit or a failure stopped the robot, 2 if the request was wrong."""
    place, args = take_first(argv, "POLICY", "the policy comes first, as in deploy POLICY [options]")
    options = parse(Options, args, prog=f"deploy {place}", description=Options.__doc__)
    _check(options)
    from mjtrain.deployment.control_loop import TickLog
    from mjtrain.deployment.policy import DeployedPolicy, find_policy
    from mjtrain.deployment.run_policy import SimulatedProcess
    from mjtrain.deployment.steering import Commands, open_operator
    from mjtrain.runs.bundle_places import is_place, open_bundle

    policy = DeployedPolicy(find_policy(str(open_bundle(place)) if is_place(place) else place))
    if options.realtime:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        except OSError as error:
            raise RequestError(
                f"--realtime: {error.strerror}; it needs CAP_SYS_NICE or a limit by ulimit -r"
            ) from error
    with contextlib.ExitStack() as stack:
        operator = stack.enter_context(open_operator(options.drive, options.gamepad))
        commands, process = Commands(policy.metadata, options.command, operator), None
        for line in commands.notices:
            print(printable(line), file=sys.stderr)
        if options.robot == "mujoco":
            with tempfile.TemporaryDirectory(prefix="mjtrain-") as folder:
                model = options.model or str(_find_model(policy.file.parent, Path(folder)))
                names = ("delay_s", "noise", "loss", "mass", "friction", "held", "watchdog_s", "seed")
                simulation = {"model": model, **{name: getattr(options, name) for name in names}}
                process = stack.enter_context(contextlib.closing(SimulatedProcess(simulation, policy)))
        log = TickLog(options.log)
        stack.callback(log.write)  # after all of the control loop: a disk may be full
        _deploy(options, policy, commands, process, log)


def _deploy(options: Options, policy: Any, commands: Any, process: Any, log: Any) -> None:
    from mjtrain.deployment.control_loop import COMPLETED, STOPPED, Controller, Limits, Phases
    from mjtrain.deployment.observation import make_observer
    from mjtrain.deployment.packets import UdpRobot
    from mjtrain.deployment.run_policy import report
    from mjtrain.deployment.unitree import UnitreeRobot

    phases = Phases(damped_s=options.damped_s, standing_s=options.standing_s, policy_s=options.seconds)
    limits = Limits(
        torque=options.max_torque,
        position=options.position_margin,
        tilt=options.max_tilt,
        stale_s=options.stale_s,
        late_ticks=options.late_ticks,
    )
    stopped: list[int] = []
    handlers: dict[int, Any] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # where the SDK of Unitree writes its messages
        stack.callback(lambda: [signal.signal(number, handler) for number, handler in handlers.items()])
        if process is not None:
            robot = UdpRobot("127.0.0.1", process.port)
        elif options.robot == "udp":
            robot = UdpRobot(*_split_address(options.address))
        else:
            robot = UnitreeRobot(options.robot, options.address, policy.metadata, options.watchdog_s)
        stack.enter_context(contextlib.closing(robot))
        controller = Controller(policy, robot, commands, phases, limits, log)

        def stop(number: int, _: Any) -> None:
            stopped.append(number)
            controller.stop(signal.Signals(number).name)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores it
                handlers[number] = signal.signal(number, stop)
        if isinstance(robot, UnitreeRobot):
            make_observer(policy.metadata, robot.read(), commands.current)  # while the robot still balances itself
            robot.take_motors(stopped)
        cause = controller.run()
    if cause not in (COMPLETED, STOPPED) and process is not None and (end := process.find_end()) is not None:
        cause = f"{end}; {cause}"
    _print(report(controller, robot, policy, cause), options.json)
    if stopped:
        sys.exit(128 + stopped[0])
    if cause not in (COMPLETED, STOPPED):
        print(printable(f"deploy: stopped: {cause}"), file=sys.stderr)
        sys.exit(1)


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, indent=2))
        return
    begin = printable(f"{found['task']}: {found['ended']}")
    print(f"{begin}; the policy acted for {found['policy_s']:g} s at {found['rate_hz']:g} Hz")
    for name, spread in found["errors"].items():
        print(f"  error {printable(name)}: mean {spread['mean']:g}, max {spread['max']:g}")
    if found["max_tilt_rad"] is not None:
        print(f"  largest tilt: {found['max_tilt_rad']:g} rad")
    print(f"  ticks: {found['ticks']}, missed {found['missed_ticks']}")
    words = {"late_ms": "late", "work_ms": "work per tick", "network_ms": "network", "age_ms": "age of readings"}
    for key, word in words.items():
        if (spread := found[key]) is not None:
            print(f"  {word}: mean {spread['mean']:.2f}, p99 {spread['p99']:.2f}, max {spread['max']:.2f} ms")
    print(f"  at the torque limit: {100 * found['at_torque_limit']:.1f} % of ticks")
    print(f"  readings: {', '.join(f'{count} {word}' for word, count in found['readings'].items())}")


def _check(options: Options) -> None:
    refuse(find_option_problems(options))
    check_seed("--seed", options.seed)
    if options.robot != "mujoco":
        changed = ["model", "delay_s", "noise", "loss", "mass", "friction", "held", "seed"]
        for name in (name for name in changed if getattr(options, name) != getattr(Options, name)):
            raise RequestError(f"--{name.replace('_', '-')}: is for --robot mujoco")
    if options.robot == "udp":
        _split_address(options.address)
        if options.watchdog_s != Options.watchdog_s:
            raise RequestError("--watchdog-s: is not for --robot udp, which decides when it brakes")
    elif options.robot != "mujoco":
        if options.address == Options.address:
            raise RequestError(f"--robot {options.robot}: give the network interface by --address, such as eth0")
        _, colon, domain = options.address.partition(":")
        if colon and not domain.isdecimal():
            raise RequestError(f"--address {options.address}: DDS domain {domain!r} is not a number, as in eth0:1")
    if options.drive != "gamepad" and options.gamepad != Options.gamepad:
        raise RequestError(f"--gamepad {options.gamepad}: is for --drive gamepad")
    if options.robot == "mujoco" and options.address != Options.address:
        raise RequestError(
            f"--address {options.address}: is not for --robot mujoco; choose --robot udp, unitree-go2 or unitree-g1"
        )


def _split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise RequestError(f"--address {address}: give a host and a port, such as 127.0.0.1:9870")
    return host, int(port)


def _find_model(policy: Path, folder: Path) -> Path:
    """Return the model beside a policy; of a shared policy one that is compiled in a folder, from its robot."""
    model = policy / "model.mjb"
    if model.exists() or not (policy / "params").is_dir():
        return model
    code = "import sys; from mjtrain.cli.deploy import compile_model; compile_model(*sys.argv[1:])"
    # In another process, because compiling imports torch, and the controller does without it.
    command = [sys.executable, "-P", "-c", code, str(policy), str(folder / model.name)]
    environ = {**os.environ, "PYTHONPATH": module_path()}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise RequestError(f"{policy}: its robot cannot be compiled ({done.stderr.strip().rpartition(chr(10))[2]})")
    return folder / model.name


def compile_model(bundle: str, model: str) -> None:
    """Write robot and ground of a shared policy as a compiled model."""
    from mjtrain.runs.trained_run import read_run
    from mjtrain.sim.robots.robot import save_model

    save_model(read_run(Path(bundle)).own_env, Path(model))


if __name__ == "__main__":
    main()
