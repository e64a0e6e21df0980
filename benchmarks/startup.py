"""Measure how long a user waits: for help, for list-tasks, and for the first iteration of a training.

    uv run benchmarks/startup.py

Each command runs five times after one warm-up; the table shows the seconds from starting the process to its end, or to
the first iteration's line.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
COMMANDS = {
    "mjtrain --help": (["mjtrain", "--help"], None),
    "train --help": (["train", "--help"], None),
    "list-tasks": (["list-tasks"], None),
    "train Cartpole-Balance --help": (["train", "Cartpole-Balance", "--help"], None),
    "first iteration, native": (
        ["train", "Cartpole-Balance", "--gpu-ids", "None", "--max-iterations", "5"],
        "iteration 1/",
    ),
    "first iteration, two workers": (
        ["train", "Cartpole-Balance", "--gpu-ids", "None", "--num-workers", "2", "--max-iterations", "5"],
        "iteration 1/",
    ),
}


def seconds(command: list[str], line: str | None) -> float:
    """Time a command to its end, or to the first line of output that begins so."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        with subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            waited = None
            for output in process.stdout:
                if waited is None and line is not None and output.startswith(line):
                    waited = time.perf_counter() - begin
            process.wait()
        return waited if waited is not None else time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    print(f"{'seconds':32}{'min':>8}{'median':>8}{'max':>8}")
    for name, (command, line) in COMMANDS.items():
        seconds(command, line)
        times = [seconds(command, line) for _ in range(5)]
        print(f"{name:32}{min(times):8.2f}{statistics.median(times):8.2f}{max(times):8.2f}", flush=True)


if __name__ == "__main__":
    main()
