"""Whether two runs saw and learned the same: their metrics, except for times, and their last checkpoints.

    uv run benchmarks/compare_runs.py logs/a/cartpole_balance/* logs/b/cartpole_balance/*

Says of each iteration that both have how far the numbers are apart, and whether the networks are equal bit for bit.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from mjtrain.runs.checkpoint import load_checkpoint

NOT_COMPARED = ("env_steps_per_second", "time", "slowest_rank", "event")


def read_metrics(run_dir: Path) -> dict[int, dict[str, Any]]:
    """Return the numbers of each iteration, without those that no two runs share."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {
        line["iteration"]: {
            key: value
            for key, value in line.items()
            if isinstance(value, int | float) and not any(word in key for word in NOT_COMPARED)
        }
        for line in lines
        if "event" not in line
    }


def find_difference(one: dict[str, Any], other: dict[str, Any]) -> tuple[float, str]:
    """Return the largest relative difference of two iterations' numbers, and where it is."""
    differences = [
        (abs(one[key] - other[key]) / max(abs(one[key]), abs(other[key]), 1e-12), key)
        for key in one.keys() & other.keys()
    ]
    return max(differences, default=(0.0, "nothing"))


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs=2)
    one, other = parser.parse_args().runs
    ours, theirs = read_metrics(one), read_metrics(other)
    for iteration in sorted(ours.keys() | theirs.keys()):
        if iteration not in ours or iteration not in theirs:
            print(f"iteration {iteration}: only in {one if iteration in ours else other}")
            continue
        difference, key = find_difference(ours[iteration], theirs[iteration])
        print(f"iteration {iteration}: " + ("equal" if difference == 0 else f"{key} differs by {difference:.1e}"))
    names = [max(run.glob("model_*.pt"), key=lambda path: int(path.stem.partition("_")[2])) for run in (one, other)]
    first, second = (load_checkpoint(path, "cpu")["actor_state_dict"] for path in names)
    apart = max(float((first[name].double() - second[name].double()).abs().max()) for name in first)
    same = all(torch.equal(first[name], second[name]) for name in first)
    print(f"actor of {names[0].name} and {names[1].name}: " + ("equal bit for bit" if same else f"{apart:.1e} apart"))


if __name__ == "__main__":
    main()
