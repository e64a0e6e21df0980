"""Seven short trainings with fixed seeds, and whether two versions of mjtrain compute the same numbers in them.

    uv run benchmarks/reference_metrics.py --output before.json           # a minute on two idle cores
    uv run benchmarks/reference_metrics.py --compare before.json          # exits with 1 if a number differs
    ../clone/.venv/bin/python benchmarks/reference_metrics.py --output before.json     # the code of another clone
    uv run benchmarks/reference_metrics.py --runs cartpole arm --compare before.json   # some of the runs only

Each run is the command `mjtrain train` on the native engine, with one thread per rank, and is read from its
metrics.jsonl. The numbers are compared exactly. They depend on the processor and on the versions of torch and MuJoCo,
so compare files of one machine and one environment only.

Keys that measure time or name the slowest rank are left out, because they differ between two runs of the same code:
env_steps_per_second, slowest_rank, the time of an event, and all keys that contain _time_, such as collect_time_s and
busy_time_by_rank_s.
"""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]

RUNS = {
    "cartpole": "Cartpole-Balance --num-envs 256 --max-iterations 15 --eval-interval 5 --eval-episodes 8",
    "cartpole-2-ranks": (
        "Cartpole-Balance --num-workers 2 --num-envs 128 --max-iterations 15 --eval-interval 5 --eval-episodes 8"
    ),
    "quadruped": "Quadruped-Velocity-Flat --num-envs 128 --max-iterations 15 --eval-interval 5 --eval-episodes 4",
    "quadruped-2-ranks": (
        "Quadruped-Velocity-Flat --num-workers 2 --num-envs 64 --max-iterations 15 --eval-interval 5 --eval-episodes 4"
    ),
    "rough": "Quadruped-Velocity-Rough --num-envs 128 --max-iterations 15 --eval-interval 15 --eval-episodes 4",
    "arm": "Arm-Reach --num-envs 64 --max-iterations 16 --eval-interval 8 --eval-episodes 8",
    "hand-vision": (
        "mjtrain_tasks.hand_reorient_vision:make_without_teacher --num-envs 32 --max-iterations 10 --eval-interval 10 "
        "--eval-episodes 4"
    ),
}
"""Task and flags of each run."""

COMMON = "--engine native --gpu-ids None --num-threads 1 --seed 7 --logger none --log-root logs"


def is_compared(key: str) -> bool:
    """Tell whether two runs of the same code agree in a key of metrics.jsonl."""
    return key not in ("env_steps_per_second", "slowest_rank", "time") and "_time_" not in key


def train(arguments: str) -> Rows:
    """Run the command in a temporary folder; return its rows of metrics.jsonl.

    The command is started with -m, so that it is the one of the Python that runs this file.
    """
    command = [sys.executable, "-m", "mjtrain", "train", *shlex.split(arguments), *shlex.split(COMMON)]
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{shlex.join(command)} ended with status {done.returncode}:\n{done.stderr}")
        (path,) = Path(folder).glob("logs/*/*/metrics.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if is_compared(key)} for row in rows]


def find_differences(before: Rows, now: Rows) -> Iterator[str]:
    """Yield what differs between the rows of two runs, one line for each number."""
    if len(before) != len(now):
        yield f"{len(before)} rows before, {len(now)} now"
    for index, (old, new) in enumerate(zip(before, now, strict=False)):
        where = f"iteration {new['iteration']}" if "iteration" in new else f"row {index}"
        if where.startswith("row") and "event" in new:
            where = f"event {new['event']}"
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in old or key not in new:
                yield f"{where}: {key} exists only {'before' if key in old else 'now'}"
            elif not is_same(old[key], new[key]):
                yield f"{where}: {key} was {old[key]!r}, is {new[key]!r}"


def is_same(old: object, new: object) -> bool:
    """Tell whether two values are equal, where a NaN equals a NaN."""
    both_nan = isinstance(old, float) and isinstance(new, float) and math.isnan(old) and math.isnan(new)
    return both_nan or (type(old) is type(new) and old == new)


def main() -> None:
    """Train, write, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS), help="default: all")
    parser.add_argument("--output", type=Path, help="write the metrics to this file")
    parser.add_argument("--compare", type=Path, help="a file of --output; print the differences from it")
    arguments = parser.parse_args()
    before = json.loads(arguments.compare.read_text()) if arguments.compare else None
    where = "import mjtrain; print(mjtrain.__file__)"
    with tempfile.TemporaryDirectory() as folder:
        print(subprocess.check_output([sys.executable, "-c", where], cwd=folder, text=True), end="")
    runs: dict[str, Rows] = {}
    num_differences = 0
    for name in arguments.runs:
        begin = time.perf_counter()
        runs[name] = train(RUNS[name])
        num_values = sum(len(row) for row in runs[name])
        print(f"{name}: {len(runs[name])} rows, {num_values} values, {time.perf_counter() - begin:.0f} s", flush=True)
        if before is None and arguments.output is None:
            print(*map(json.dumps, runs[name]), sep="\n")
        if before is not None:
            differences = list(find_differences(before[name], runs[name]))
            print(*(f"  {line}" for line in differences or ["equal"]), sep="\n", flush=True)
            num_differences += len(differences)
    if arguments.output is not None:
        rows = {name: [json.dumps(row) for row in run] for name, run in runs.items()}
        runs_text = [f'"{name}": [\n' + ",\n".join(lines) + "\n]" for name, lines in rows.items()]
        arguments.output.write_text("{\n" + ",\n".join(runs_text) + "\n}\n")
    if before is not None:
        print(f"{num_differences} differences" if num_differences else "all runs are equal")
    sys.exit(1 if num_differences else 0)


if __name__ == "__main__":
    main()
