"""Does a training with restarts survive its ranks being killed at random, and what does each kill cost?

    uv run benchmarks/kill_ranks.py [--kills 20] [--ranks 2] [--min-ranks 1] [--seed 0]

Trains Cartpole-Balance on two ranks with --max-restarts 30, sends SIGKILL to a random rank at random moments, and
prints what was lost each time. With --min-ranks, a rank that is hit twice at the same place with nothing saved between
is left out, and the others continue. Ends with status 1 if the run does not finish, if an iteration is missing or there
twice, if more than a save interval was lost, or if a process is left.
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
from pathlib import Path

SAVE_INTERVAL = 5


def find_ranks(marker: str) -> list[int]:
    """List the ranks of the job that carries a marker in its environment: they hold a file for their stack open."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                if marker.encode() not in (path / "environ").read_bytes():
                    continue
                names = [str(link.readlink()) for link in (path / "fd").iterdir()]
            except OSError:
                continue
            if any("/stack_" in name for name in names):
                found.append(int(path.name))
    return found


def read_rows(folder: Path) -> list[dict]:
    """Read metrics.jsonl as far as it is written."""
    files = list(folder.glob("*/*/metrics.jsonl"))
    lines = files[0].read_text().split("\n")[:-1] if files else []
    return [json.loads(line) for line in lines]


def count_iterations(folder: Path) -> int:
    """Return the last iteration on record."""
    return max((row["iteration"] for row in read_rows(folder) if "event" not in row), default=0)


def count_ranks(folder: Path) -> int | None:
    """Return with how many ranks the job continues; None before any was left out."""
    sizes = [row["world_size"] for row in read_rows(folder) if row.get("event") == "restart" and "world_size" in row]
    return sizes[-1] if sizes else None


def train(folder: Path, options: argparse.Namespace, num_iterations: int, source: random.Random) -> list[str]:
    """Train and kill; return what is wrong with the outcome."""
    kills = options.kills
    marker = f"KILL_RANKS={os.getpid()}_{time.time_ns()}"
    command = [sys.executable, "-m", "mjtrain.cli.train", "Cartpole-Balance", "--gpu-ids", "None", "--num-workers"]
    command += [str(options.ranks), *([] if options.min_ranks is None else ["--min-ranks", str(options.min_ranks)])]
    command += ["--num-envs", "64", "--max-iterations", str(num_iterations), "--max-restarts", "30", "--log-root", "."]
    command += ["--agent.save-interval", str(SAVE_INTERVAL), "--logger", "none"]
    name, _, value = marker.partition("=")
    done, kills_done = False, 0
    with (folder / "console").open("w") as console:
        process = subprocess.Popen(command, cwd=folder, env=os.environ | {name: value}, stdout=console, stderr=console)
        while not done and kills_done < kills:
            restarts = sum("event" in row for row in read_rows(folder))
            begun = count_iterations(folder)
            moment = begun + source.randrange(1, 2 * SAVE_INTERVAL)
            while not (done := process.poll() is not None):
                now = sum("event" in row for row in read_rows(folder))
                if now == kills_done and restarts == now and count_iterations(folder) >= moment:
                    break
                restarts = now
                time.sleep(0.02)
            ranks = find_ranks(marker)
            if not done and len(ranks) == (count_ranks(folder) or options.ranks):
                os.kill(source.choice(ranks), signal.SIGKILL)
                kills_done += 1
                print(f"kill {kills_done} at iteration {count_iterations(folder)}", flush=True)
                while process.poll() is None and sum("event" in row for row in read_rows(folder)) < kills_done:
                    time.sleep(0.02)
        status = process.wait()
    problems = [] if status == 0 else [f"status {status}", (folder / "console").read_text()[-3000:]]
    if kills_done < kills:
        problems.append(f"the run was over after {kills_done} kills; give it more iterations")
    return problems + find_problems(folder, num_iterations, kills_done, marker)


def find_problems(folder: Path, num_iterations: int, kills: int, marker: str) -> list[str]:
    """Look at what the run has left."""
    rows = read_rows(folder)
    problems = []
    iterations = [row["iteration"] for row in rows if "event" not in row]
    restarts = [row for row in rows if row.get("event") == "restart"]
    if iterations != list(range(1, num_iterations + 1)):
        problems.append(f"metrics.jsonl has the iterations {iterations}")
    if len(restarts) != kills:
        problems.append(f"{kills} kills and {len(restarts)} restarts")
    saved = 0
    for row in restarts:
        print(f"restart {row['restart']}: from iteration {row['iteration']}, {row['lost']} lost; {row['cause']}")
        for place in row.get("left_out", ()):
            print(f"  {row['world_size']} ranks continue, without {place}")
        if row["lost"] > SAVE_INTERVAL:
            problems.append(f"restart {row['restart']} lost {row['lost']} iterations")
        if row["iteration"] > saved and row["wait_s"] > 1:
            problems.append(f"restart {row['restart']} waited {row['wait_s']} s though the run had got further")
        saved = row["iteration"]
    left = [path.name for path in Path("/proc").iterdir() if path.name.isdigit() and _carries(path, marker)]
    return problems + ([f"processes {left} are left"] if left else [])


def _carries(path: Path, marker: str) -> bool:
    try:
        return marker.encode() in (path / "environ").read_bytes()
    except OSError:
        return False


def main() -> None:
    """Kill, and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--min-ranks", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    num_iterations = 2 * SAVE_INTERVAL * (options.kills + 1)
    with tempfile.TemporaryDirectory() as name:
        begin = time.monotonic()
        problems = train(Path(name), options, num_iterations, random.Random(options.seed))
        print(f"{options.kills} kills, {num_iterations} iterations, {time.monotonic() - begin:.0f} s")
    for problem in problems:
        print(f"WRONG: {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
