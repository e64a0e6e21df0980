"""Does a sweep survive its processes being killed at random?

    uv run benchmarks/kill_sweep.py [--kills 20] [--trials 16] [--seed 0]

Searches Cartpole-Balance with trials of two ranks, sends SIGKILL to a random process of the sweep (the command itself,
reapers, launchers, spawners, agents, ranks) at random moments, and gives the same command again whenever the command
itself was killed. Ends with status 1 if the sweep does not finish, if a trial is missing or there twice, if a complete
trial lacks an iteration, or if a process is left.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ITERATIONS = 20
GONE_WITHIN_S = 10.0
MODULES = ("cli.sweep", "cli.train", "launcher.job.reaper", "launcher.job.spawner", "sweep.start_trial")


def list_processes(marker: str) -> list[int]:
    """List the living processes that carry a marker in their environment."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                is_alive = (path / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
                if is_alive and marker.encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
    return found


def name_process(pid: int) -> str:
    """Say what a process is: the module that it runs; forks of a spawner are agents and ranks."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return "gone"
    return next((module for module in MODULES if f"mjtrain.{module}" in words), "other")


def wait_until_gone(marker: str) -> list[int]:
    """Wait for the processes to go; return those that do not."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := list_processes(marker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def run_and_kill(folder: Path, num_trials: int, kills: int, source: random.Random) -> list[str]:
    """Run the sweep and kill; return what is wrong with the outcome."""
    marker = f"KILL_SWEEP={os.getpid()}_{time.time_ns()}"
    name, _, value = marker.partition("=")
    command = [sys.executable, "-m", "mjtrain.cli.sweep", "Cartpole-Balance", "--trials", str(num_trials)]
    command += ["--param", "agent.algorithm.learning-rate", "log", "1e-4", "1e-2", "--metric", "mean_reward"]
    command += ["--gpus-per-trial", "0", "--sweep-dir", str(folder), "--", "--num-workers", "2", "--num-envs", "32"]
    command += ["--max-iterations", str(ITERATIONS), "--agent.save-interval", "5"]
    killed: Counter[str] = Counter()
    starts, problems = 0, []
    with (folder / "console").open("a") as console:
        while True:
            starts += 1
            process = subprocess.Popen(command, env=os.environ | {name: value}, stdout=console, stderr=console)
            while process.poll() is None:
                if killed.total() < kills and "cli.train" in map(name_process, list_processes(marker)):
                    time.sleep(source.uniform(0.0, 10.0))
                    living = list_processes(marker)
                    # One of four hits the command itself, the others any process.
                    victim = process.pid if source.random() < 0.25 or not living else source.choice(living)
                    what = name_process(victim)
                    if process.poll() is None and what != "gone":
                        os.kill(victim, signal.SIGKILL)
                        killed[what] += 1
                        print(f"kill {killed.total()}: {what}", flush=True)
                time.sleep(0.1)
            if left := wait_until_gone(marker):
                problems.append(f"left behind after status {process.returncode}: {[name_process(pid) for pid in left]}")
            if process.returncode != -signal.SIGKILL:
                break
    if process.returncode != 0:
        problems += [f"status {process.returncode}", (folder / "console").read_text()[-3000:]]
    print(f"{killed.total()} kills ({dict(killed)}), {starts} starts")
    return problems + find_problems(folder, num_trials)


def find_problems(folder: Path, num_trials: int) -> list[str]:
    """Look at what the sweep has recorded."""
    summary = json.loads((folder / "sweep.json").read_text())
    problems = []
    if [trial["number"] for trial in summary["trials"]] != list(range(num_trials)):
        problems.append(f"trials {[trial['number'] for trial in summary['trials']]}")
    if summary["counts"]["running"]:
        problems.append(f"{summary['counts']['running']} trials have not ended")
    for trial in summary["trials"]:
        if trial["state"] == "complete":
            lines = (folder / trial["runs"][0] / "metrics.jsonl").read_text().splitlines()
            iterations = [json.loads(line)["iteration"] for line in lines if '"event"' not in line]
            if iterations != list(range(1, ITERATIONS + 1)):
                problems.append(f"trial {trial['number']} has the iterations {iterations}")
    print(f"trials: {summary['counts']}")
    return problems


def main() -> None:
    """Kill and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        problems = run_and_kill(Path(folder), arguments.trials, arguments.kills, random.Random(arguments.seed))
    print("\n".join(problems) or "nothing is lost and nothing is left")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
