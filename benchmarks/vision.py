"""Train Cartpole-Balance-Vision from what a camera sees, and as a control from a camera that looks away.

    uv run benchmarks/vision.py                          # RGB with three seeds, depth, segmentation, and the control
    uv run benchmarks/vision.py --cases rgb --seeds 7 8

Each run is the default command, with the flags of its case. Prints after how long, and after how many env steps, the
mean episode length of five iterations first was 95 % of the longest, and what that of the last ten was. Exits with 1 if
a case misses its bar.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

LONGEST = 250
"""Env steps of the longest episode: 10 s at 25 per second."""

SHARE = 0.95
LIMIT_S = 15 * 60.0
SMOOTHED = 5
"""Iterations; in one of them few episodes end."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Flags of a run, and whether it must learn or must not."""

    flags: tuple[str, ...] = ()
    learns: bool = True


CASES = {
    "rgb": Case(),
    "depth": Case(flags=("--env.cameras.front.streams", "depth")),
    "segmentation": Case(flags=("--env.cameras.front.streams", "segmentation")),
    "turned away": Case(flags=("--env.robot.cameras.front.xyaxes", *["-1", "0", "0", "0", "0", "1"]), learns=False),
}


def train(case: Case, seed: int) -> tuple[list[dict[str, float]], float]:
    """Run the command; return the metrics of its iterations and the seconds from Enter to the end."""
    command = [str(Path(sys.executable).parent / "train"), "Cartpole-Balance-Vision", "--gpu-ids", "None"]
    begin = time.perf_counter()
    done = subprocess.run([*command, "--seed", str(seed), *case.flags], capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - begin
    match = re.search(r"^run directory: (.*)$", done.stderr, re.MULTILINE)
    if done.returncode != 0 or match is None:
        sys.exit(done.stderr)
    rows = map(json.loads, (Path(match[1]) / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if "iteration" in row and "event" not in row], wall_s


def mean_length(rows: list[dict[str, float]]) -> float:
    """Return the mean over iterations in which episodes ended."""
    lengths = [row["mean_episode_length"] for row in rows if row["mean_episode_length"]]
    return sum(lengths) / max(1, len(lengths))


def main() -> None:
    """Run the cases and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of the case rgb; the others take one")
    args = parser.parse_args()
    missed = False
    print("case          seed  to 95 %: training, s  env steps  |  end: length  env steps  env steps/s  from Enter, s")
    for name in args.cases:
        case = CASES[name]
        for seed in args.seeds if name == "rgb" else args.seeds[:1]:
            rows, wall_s = train(case, seed)
            spent = 0.0
            reached: tuple[float, float] | None = None
            for number, row in enumerate(rows, start=1):
                spent += row["collect_time_s"] + row["learn_time_s"]
                if reached is None and mean_length(rows[max(0, number - SMOOTHED) : number]) >= SHARE * LONGEST:
                    reached = spent, row["env_steps_total"]
            length, env_steps = mean_length(rows[-2 * SMOOTHED :]), rows[-1]["env_steps_total"]
            first = f"{reached[0]:21.0f}  {reached[1]:9,.0f}" if reached else f"{'never':>21}  {'':9}"
            print(
                f"{name:12}  {seed:4}  {first}  |  {length:11.1f}  {env_steps:9,.0f}  {env_steps / spent:11,.0f}  "
                f"{wall_s:13.0f}",
                flush=True,
            )
            missed |= (reached is None or reached[0] > LIMIT_S) if case.learns else reached is not None
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
