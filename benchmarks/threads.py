"""Training speed beside other work: the default number of threads against fixed ones.

    uv run benchmarks/threads.py
    uv run benchmarks/threads.py --task Arm-Reach --loads 0 4

At each load, that many processes compute without a pause on the same cores while a training runs. The speed is the
median of its iterations after the first five. Exits with 1 if the default is below 85 % of the best.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

BAR = 0.85
WARM_UP = 5


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many processes computing."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def env_steps_per_second(task: str, threads: int | None, iterations: int) -> float:
    """Train by the command; None is the default number of threads."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).parent / "train"), task, "--gpu-ids", "None", "--logger", "none"]
        command += ["--max-iterations", str(iterations), "--log-root", folder]
        if threads is not None:
            command += ["--num-threads", str(threads)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (metrics,) = Path(folder).rglob("metrics.jsonl")
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        speeds = [row["env_steps_per_second"] for row in rows if "event" not in row]
        return statistics.median(speeds[WARM_UP:])


def main() -> None:
    """Measure and print."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="Quadruped-Velocity-Flat")
    parser.add_argument("--loads", nargs="+", type=int, default=[0, cores, 2 * cores])
    parser.add_argument("--threads", nargs="+", type=int, default=list(range(1, cores + 1)))
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=2, help="each is measured so often, in turn; the best counts")
    args = parser.parse_args()
    kinds = [*args.threads, None]
    print(f"{args.task}, {cores} cores, env steps/s\n")
    names = ["default" if kind is None else f"--num-threads {kind}" for kind in kinds]
    print(f"| load | {' | '.join(names)} | default / best |")
    print("|---|" + "---|" * (len(kinds) + 1))
    missed = False
    for load in args.loads:
        with busy(load):
            rounds = [
                [env_steps_per_second(args.task, kind, args.iterations) for kind in kinds] for _ in range(args.rounds)
            ]
        best = [max(column) for column in zip(*rounds, strict=True)]
        ratio = best[-1] / max(best)
        missed |= ratio < BAR
        print(f"| {load} | " + " | ".join(f"{speed:,.0f}" for speed in best) + f" | {100 * ratio:.0f} % |")
    sys.exit(int(missed))


if __name__ == "__main__":
    main()
