"""Does a sweep survive its processes being killed at random?

    uv run benchmarks/kill_sweep.py [--kills 20] [--trials 24] [--processes 1] [--seed 0]

Searches Cartpole-Balance with trials of two ranks, which may start again twice; sends SIGKILL to a random process of
the sweep (the command itself, reapers, launchers, spawners, agents, ranks) at random moments, and gives the same
command again whenever the command itself was killed. With --processes 2, two commands share the sweep. Ends with status
1 if the sweep does not finish, if a trial is missing or there twice, if one that had ended changes, if a complete trial
lacks an iteration, or if a process is left.
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
from typing import Any

ITERATIONS = 20
GONE_WITHIN_S = 10.0
MODULES = (
    "mjtrain.cli.sweep",
    "mjtrain.cli.train",
    "mjtrain.launcher.job.reaper",
    "mjtrain.launcher.job.spawner",
    "mjtrain.tools.start_train",
)


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
    return next((module for module in MODULES if module in words), "other")


def wait_until_gone(marker: str) -> list[int]:
    """Wait for the processes to go; return those that do not."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := list_processes(marker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


class Sweep:
    """The processes of one sweep, each of which is started again when it was killed."""

    def __init__(self, folder: Path, num_trials: int, num_processes: int) -> None:
        """Start them."""
        self.folder = folder
        self._marker = f"KILL_SWEEP={os.getpid()}_{time.time_ns()}"
        self._command = [sys.executable, "-m", "mjtrain.cli.sweep", "Cartpole-Balance", "--trials", str(num_trials)]
        self._command += ["--param", "agent.algorithm.learning-rate", "log", "1e-4", "1e-2", "--metric", "mean_reward"]
        self._command += ["--gpus-per-trial", "0", "--sweep-dir", str(folder)]
        self._command += ["--jobs", "1", "--shared"] if num_processes > 1 else []
        self._command += ["--", "--num-workers", "2", "--num-envs", "32", "--max-iterations", str(ITERATIONS)]
        self._command += ["--agent.save-interval", "5", "--max-restarts", "2"]
        self._console = (folder / "console").open("a")
        self.starts = 0
        self._running = [self._start() for _ in range(num_processes)]
        self.ended: dict[int, Any] = {}
        """What sweep.json has said of each trial that had ended."""
        self.problems: list[str] = []

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        name, _, value = self._marker.partition("=")
        return subprocess.Popen(
            self._command, env=os.environ | {name: value}, stdout=self._console, stderr=self._console
        )

    def follow(self) -> bool:
        """Start again what was killed; return whether any of them is at work."""
        for process in list(self._running):
            if process.poll() is not None:
                self._running.remove(process)
                if process.returncode == -signal.SIGKILL:
                    if not self._running:
                        self._check_left()
                    self._running.append(self._start())
                elif process.returncode != 0:
                    self.problems += [f"status {process.returncode}", (self.folder / "console").read_text()[-3000:]]
        self._remember()
        return bool(self._running)

    def _remember(self) -> None:
        """Look whether what has ended stays as it was."""
        path = self.folder / "sweep.json"
        for trial in json.loads(path.read_text())["trials"] if path.exists() else []:
            is_open = trial["state"] in ("running", "paused")
            known = None if is_open else self.ended.setdefault(trial["number"], trial)
            if known is None and trial["number"] in self.ended:
                self.problems.append(f"trial {trial['number']} had ended, and runs again")
            elif known is not None and known != trial:
                self.problems.append(f"trial {trial['number']} was {known} and is {trial}")

    def kill(self, source: random.Random) -> str:
        """Kill one of the commands, one time in four, or any process; return what it was, or nothing."""
        living = list_processes(self._marker)
        if "mjtrain.cli.train" not in map(name_process, living):
            return ""
        commands = [process.pid for process in self._running]
        victim = source.choice(commands if source.random() < 0.25 else living)
        what = name_process(victim)
        if what == "gone":
            return ""
        os.kill(victim, signal.SIGKILL)
        return what

    def close(self) -> None:
        """End the record, and look whether anything is left."""
        self._console.close()
        self._check_left()

    def _check_left(self) -> None:
        if left := wait_until_gone(self._marker):
            self.problems.append(f"left behind: {[name_process(pid) for pid in left]}")


def run_and_kill(folder: Path, num_trials: int, num_processes: int, kills: int, source: random.Random) -> list[str]:
    """Run the sweep and kill; return what is wrong with the outcome."""
    sweep = Sweep(folder, num_trials, num_processes)
    killed: Counter[str] = Counter()
    next_kill_s = time.monotonic() + source.uniform(0.0, 20.0)
    while sweep.follow():
        if killed.total() < kills and time.monotonic() > next_kill_s and (what := sweep.kill(source)):
            killed[what] += 1
            print(f"kill {killed.total()}: {what}", flush=True)
            next_kill_s = time.monotonic() + source.uniform(0.0, 20.0)
        time.sleep(0.1)
    sweep.close()
    print(f"{killed.total()} kills ({dict(killed)}), {sweep.starts} starts")
    if killed.total() < kills:
        sweep.problems.append(f"the sweep ended before there were {kills} kills; give more --trials")
    return sweep.problems + find_problems(folder, num_trials)


def find_problems(folder: Path, num_trials: int) -> list[str]:
    """Look at what the sweep has recorded."""
    summary = json.loads((folder / "sweep.json").read_text())
    problems = []
    if [trial["number"] for trial in summary["trials"]] != list(range(num_trials)):
        problems.append(f"trials {[trial['number'] for trial in summary['trials']]}")
    if still_open := summary["counts"]["running"] + summary["counts"]["paused"]:
        problems.append(f"{still_open} trials have not ended")
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
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = random.Random(arguments.seed)
        problems = run_and_kill(Path(folder), arguments.trials, arguments.processes, arguments.kills, source)
    print("\n".join(problems) or "nothing is lost and nothing is left")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
