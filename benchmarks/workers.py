"""Wall seconds to Cartpole-Balance's threshold, with one CPU worker and with two, over several seeds.

    uv run benchmarks/workers.py

Each worker has one thread; the job has 1,024 environments in all, so two workers do the same work in parallel. The
threshold is a mean episode length of 98 % of the longest; the time is that of training, from the first env step.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LONGEST = 500


def seconds_to_threshold(num_workers: int, seed: int) -> float:
    """Train by the command and return the seconds until the threshold, or infinity."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).parent / "train"), "Cartpole-Balance", "--gpu-ids", "None"]
        command += ["--num-workers", str(num_workers), "--num-threads", "1", "--num-envs-total", "1024"]
        command += ["--max-iterations", "60", "--seed", str(seed), "--logger", "none", "--log-root", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (metrics,) = Path(folder).rglob("metrics.jsonl")
        elapsed_s = 0.0
        for row in map(json.loads, metrics.read_text().splitlines()):
            if "event" in row:
                continue
            elapsed_s += row["collect_time_s"] + row["learn_time_s"] + row["wait_time_s"]
            if (row["mean_episode_length"] or 0) >= 0.98 * LONGEST:
                return elapsed_s
    return float("inf")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments = parser.parse_args()
    print("| seed | one worker, s | two workers, s |\n|---|---|---|")
    times: list[tuple[float, float]] = []
    for seed in arguments.seeds:
        times.append((seconds_to_threshold(1, seed), seconds_to_threshold(2, seed)))
        print(f"| {seed} | {times[-1][0]:.1f} | {times[-1][1]:.1f} |", flush=True)
    one, two = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"| median | {one:.1f} | {two:.1f} |")


if __name__ == "__main__":
    main()
