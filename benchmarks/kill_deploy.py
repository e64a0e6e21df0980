"""Measure how soon motors brake after the controller, or the robot's own process, is killed.

    uv run benchmarks/kill_deploy.py [pretrained:Quadruped-Velocity-Flat ...] [--command 0.5 0 0] [-- --realtime]

`mjtrain deploy` walks a simulated robot, and one of the two processes gets SIGKILL at a random moment, where the time
begins. Without its controller the robot damps itself: the time ends with its line about it. Without the robot's process
its controller stops: the time ends with the first packet of the state stop, at the port of the dead robot. What comes
after -- are flags of deploy. With --realtime this process, too, runs before all others, so that it is not what is late.
Ends with status 1 if one takes longer than 100 ms.
"""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mjtrain.cli.deploy import compile_model
from mjtrain.deployment.packets import MAX_BYTES, decode_targets
from mjtrain.runs.bundle_places import open_bundle

BAR_S = 0.1
DRIVEN = "robot: driven (policy)\n"
DAMPED = "robot: damped by its watchdog"
SHORT = ["--damped-s", "0.1", "--standing-s", "1", "--seconds", "600"]


def start(policy: str, model: Path, flags: list[str]) -> subprocess.Popen[str]:
    """Start a deployment and wait until the policy acts."""
    command = [sys.executable, "-m", "mjtrain.cli.deploy", policy, "--model", str(model), *SHORT, *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        if line == DRIVEN:
            return process
        lines.append(line)
    sys.exit(f"{policy}: the policy never acted\n{''.join(lines)}")


def find_robot(controller: int) -> tuple[int, int]:
    """Return the process of the simulated robot and its port."""
    (pid,) = map(int, Path(f"/proc/{controller}/task/{controller}/children").read_text().split())
    links = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    rows = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
    (port,) = [int(row[1].rpartition(":")[2], 16) for row in rows if row[9] in inodes]
    return pid, port


def kill_controller(process: subprocess.Popen[str]) -> float | None:
    """Kill the controller, and return the seconds until the robot has damped itself; None if it was damped before."""
    assert process.stderr is not None
    begin = time.monotonic()
    process.kill()
    for line in process.stderr:
        if line.startswith(DAMPED):
            return time.monotonic() - begin
    return None


def kill_robot(process: subprocess.Popen[str]) -> float | None:
    """Kill the robot's process, and return the seconds until its controller says stop; None if it had ended before."""
    pid, port = find_robot(process.pid)
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.settimeout(5.0)
        while True:
            try:
                listener.bind(("127.0.0.1", port))
                break
            except OSError:  # the kernel has not closed the dead robot's socket yet
                time.sleep(0.0005)
        while True:
            try:
                targets, _ = decode_targets(listener.recv(MAX_BYTES))
            except TimeoutError:
                return None
            if targets.state == "stop":
                return time.monotonic() - begin


SIDES = {"controller": kill_controller, "robot": kill_robot}


def measure(policy: str, model: Path, side: str, kills: int, flags: list[str], source: random.Random) -> list[float]:
    """Kill one side of several deployments. Half of the tries or more must last until they are killed."""
    found: list[float] = []
    for _ in range(2 * kills):
        if len(found) == kills:
            break
        process = start(policy, model, flags)
        try:
            time.sleep(source.uniform(0.5, 2.0))
            taken_s = SIDES[side](process) if process.poll() is None else None
        finally:
            process.kill()
            _, errors = process.communicate()
        if taken_s is None:
            print(f"  a limit ended one before it was killed: {errors.strip().rpartition(chr(10))[2]}", flush=True)
        else:
            found.append(taken_s)
    if len(found) < kills:
        sys.exit(f"{policy}: {2 * kills - len(found)} of {2 * kills} ended before they were killed")
    return found


def main() -> None:
    """Kill, and print the times."""
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    flags = sys.argv[end + 1 :]
    parser = argparse.ArgumentParser()
    pretrained = [f"pretrained:{task}-Velocity-Flat" for task in ("Quadruped", "Humanoid")]
    parser.add_argument("policies", nargs="*", default=pretrained)
    parser.add_argument("--command", nargs="+", default=["0.5", "0", "0"], help="of deploy, for all policies")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(sys.argv[1:end])
    flags = ["--command", *options.command, *flags]
    if "--realtime" in flags:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(2))
    source, worst_s = random.Random(options.seed), 0.0
    with tempfile.TemporaryDirectory() as folder:
        for index, policy in enumerate(options.policies):
            model = Path(folder) / f"{index}.mjb"
            compile_model(str(open_bundle(policy)), str(model))
            for side in SIDES:
                taken_s = measure(policy, model, side, options.kills, flags, source)
                worst_s = max(worst_s, *taken_s)
                times = " ".join(f"{1000 * each_s:.0f}" for each_s in sorted(taken_s))
                print(f"{policy}: {side} killed, damped after {times} ms", flush=True)
    sys.exit(int(worst_s > BAR_S))


if __name__ == "__main__":
    main()
