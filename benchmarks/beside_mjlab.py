"""Env steps per second of a G1-sized humanoid's training on this machine's CPU, beside mjlab's own command.

    uv venv /tmp/mjlab && uv pip install --python /tmp/mjlab/bin/python mjlab==1.6.0
    uv run benchmarks/beside_mjlab.py --mjlab /tmp/mjlab/bin/train

Trains mjlab's Mjlab-Velocity-Flat-Unitree-G1 and Humanoid-Velocity-Flat in turns, in the same number of environments,
with mjlab's networks and steps per rollout, and with all cores. mjtrain runs with its 12 joints, with all 29 joints as
mjlab does, and with mjlab's physics steps of 5 ms. The first iteration is left out: it compiles kernels.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MJLAB_TASK = "Mjlab-Velocity-Flat-Unitree-G1"
NETWORKS = ("--agent.actor.hidden-dims", "512", "256", "128", "--agent.critic.hidden-dims", "512", "256", "128")
FINE_STEPS = ("--env.robot.timestep", "0.005", "--env.decimation", "4")
VARIANTS = {
    "mjtrain, 12 joints": ("Humanoid-Velocity-Flat",),
    "mjtrain, 29 joints": ("mjtrain_tasks.humanoid_velocity:make_flat_29dof",),
    "mjtrain, 29 joints, physics steps of 5 ms": ("mjtrain_tasks.humanoid_velocity:make_flat_29dof", *FINE_STEPS),
}


def run(command: list[str], folder: Path) -> str:
    """Run a command to its end; return what it printed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout + done.stderr


def train_mjlab(program: Path, num_envs: int, iterations: int, folder: Path) -> list[float]:
    """Return the env steps per second that mjlab prints for each iteration."""
    command = [str(program), MJLAB_TASK, "--gpu-ids", "None", "--env.scene.num-envs", str(num_envs)]
    command += ["--agent.max-iterations", str(iterations), "--agent.logger", "tensorboard"]
    printed = run(command, folder)
    return [float(speed) for speed in re.findall(r"Steps per second:\s*([\d.]+)", printed)]


def train_ours(task_and_flags: tuple[str, ...], num_envs: int, iterations: int, folder: Path) -> list[float]:
    """Return the env steps per second of each iteration."""
    command = [str(Path(sys.executable).parent / "train"), *task_and_flags, "--num-envs", str(num_envs)]
    printed = run([*command, "--max-iterations", str(iterations), *NETWORKS], folder)
    match = re.search(r"^run directory: (.*)$", printed, re.MULTILINE)
    assert match is not None
    rows = [json.loads(line) for line in (folder / match[1] / "metrics.jsonl").read_text().splitlines()]
    return [row["env_steps_per_second"] for row in rows if "env_steps_per_second" in row]


def main() -> None:
    """Train in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mjlab", type=Path, required=True, help="train of an environment that has mjlab")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--iterations", type=int, default=4, help="of mjlab per turn; mjtrain makes ten times as many")
    parser.add_argument("--turns", type=int, default=2)
    arguments = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} before, {arguments.num_envs} envs\n")
    speeds: dict[str, list[float]] = {"mjlab": []} | {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for turn in range(arguments.turns):
            begin = time.monotonic()
            speeds["mjlab"] += train_mjlab(arguments.mjlab, arguments.num_envs, arguments.iterations, folder)[1:]
            for name, command in VARIANTS.items():
                speeds[name] += train_ours(command, arguments.num_envs, 10 * arguments.iterations, folder)[1:]
            print(f"turn {turn + 1}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    theirs = statistics.median(speeds["mjlab"])
    print("| training | env steps/s, median | slowest and fastest iteration | times mjlab's |")
    print("|---|---|---|---|")
    for name, values in speeds.items():
        median = statistics.median(values)
        print(f"| {name} | {median:,.0f} | {min(values):,.0f}, {max(values):,.0f} | {median / theirs:.1f} |")


if __name__ == "__main__":
    main()
