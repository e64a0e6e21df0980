"""Measure the cost of train --video: pairs of runs of the default command, with and without, one after the other.

    uv run benchmarks/video.py                                      # about ten minutes on two cores
    uv run benchmarks/video.py --tasks Cartpole-Balance --pairs 5

Both runs of a pair do the same env steps; which one goes first alternates. Speed is all env steps over all of the
training's time, what it spends on videos included, after two iterations to warm up. Runs are cut short, and the first
video begins with the first iteration, so they hold more videos per iteration than a whole run by default. Exits with 1
if a task loses 3 % or more.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ITERATIONS = {"Cartpole-Balance": 100, "Quadruped-Velocity-Flat": 25}
WARM_UP = 2
MOST_PERCENT = 3.0


def train(task: str, iterations: int, *, video: bool) -> tuple[float, float, float, int]:
    """Train; return env steps per second, video_time_s and video_cpu_s in all, and the number of videos."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mjtrain.cli.train", task, "--gpu-ids", "None", "--log-root", folder]
        command += ["--max-iterations", str(iterations), *(["--video"] if video else [])]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (metrics,) = Path(folder).glob("*/*/metrics.jsonl")
        rows = [json.loads(line) for line in metrics.read_text().splitlines() if '"event"' not in line]
        videos = len(list(Path(folder).glob("*/*/videos/*.mp4")))
    video_s = [row.get("video_time_s", 0.0) for row in rows]
    counted = list(zip(rows, video_s, strict=True))[WARM_UP:]
    steps = rows[-1]["env_steps_total"] - rows[WARM_UP - 1]["env_steps_total"]
    total_s = sum(row["collect_time_s"] + row["learn_time_s"] + row["wait_time_s"] + spent for row, spent in counted)
    return steps / total_s, sum(video_s), sum(row.get("video_cpu_s", 0.0) for row in rows), videos


def main() -> None:
    """Measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", default=list(ITERATIONS), choices=list(ITERATIONS))
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    print("| task | iterations, videos | env steps/s without | with | loss, median of the pairs, % | of each pair, % |")
    print("|---|---|---|---|---|---|")
    too_much = False
    for task in arguments.tasks:
        speeds: dict[bool, list[float]] = {False: [], True: []}
        spent = []
        for pair in range(arguments.pairs):
            for video in (False, True) if pair % 2 == 0 else (True, False):
                speed, time_s, cpu_s, videos = train(task, ITERATIONS[task], video=video)
                speeds[video].append(speed)
                if video:
                    spent.append((videos, time_s, cpu_s))
        losses = [100 * (1 - there / plain) for plain, there in zip(speeds[False], speeds[True], strict=True)]
        loss = statistics.median(losses)
        too_much |= loss >= MOST_PERCENT
        plain, recorded = (statistics.median(speeds[video]) for video in (False, True))
        each = ", ".join(f"{value:.1f}" for value in losses)
        print(f"| {task} | {ITERATIONS[task]}, {spent[0][0]} | {plain:,.0f} | {recorded:,.0f} | {loss:.1f} | {each} |")
        for videos, time_s, cpu_s in spent:
            print(f"  {videos} videos: {time_s:.3f} s of the training, {cpu_s:.2f} s of the render process", flush=True)
    sys.exit(1 if too_much else 0)


if __name__ == "__main__":
    main()
