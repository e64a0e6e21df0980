"""Does the newest valid checkpoint always load, when the process that saves is killed at random?

    uv run benchmarks/kill_saves.py [--kills 200] [--megabytes 64] [--seed 0]

A process saves one large checkpoint after another; it gets SIGKILL at a random moment of a save. After each kill the
newest valid checkpoint is loaded and compared with what was saved. Ends with status 1 if one does not load, holds
something else, or is older than the last one whose save had returned.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

from mjtrain.runs.checkpoint import (
    checkpoint_path,
    find_valid_checkpoint,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)


def make_content(iteration: int, megabytes: int) -> dict:
    """Make a checkpoint that knows its number."""
    return {"iter": iteration, "weights": torch.full((megabytes << 18,), float(iteration))}


def save_for_ever(folder: Path, first: int, megabytes: int, report: int) -> None:
    """Save one after another, and say when a save begins and when it has returned."""
    for iteration in range(first, sys.maxsize):
        content = make_content(iteration, megabytes)
        os.write(report, b"b")
        save_checkpoint(checkpoint_path(folder, iteration), content)
        os.write(report, b"d")
        prune_checkpoints(folder, keep=2)


def kill_a_save(folder: Path, first: int, megabytes: int, save_s: float, source: random.Random) -> tuple[int, float]:
    """Let a process save, and kill it in the midst of a save.

    Returns:
        The last iteration whose save had returned, and how long a whole save took if one was seen, in seconds.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        save_for_ever(folder, first, megabytes, write)
    os.close(write)
    last, whole_saves = first - 1, source.randrange(1, 3)
    for _ in range(whole_saves):
        assert os.read(read, 1) == b"b"
        begin = time.monotonic()
        assert os.read(read, 1) == b"d"
        last, save_s = last + 1, time.monotonic() - begin
    assert os.read(read, 1) == b"b"
    time.sleep(source.uniform(0.0, 1.1 * save_s))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while (word := os.read(read, 1)) != b"":
        last += word == b"d"
    os.close(read)
    return last, save_s


def main() -> None:
    """Kill, load, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    source, last, save_s, torn = random.Random(options.seed), 0, 0.0, 0
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        for kill in range(1, options.kills + 1):
            last, save_s = kill_a_save(folder, last + 1, options.megabytes, save_s, source)
            torn += bool(list(folder.glob(".*.partial")))
            path, problems = find_valid_checkpoint(folder)
            assert path is not None, f"kill {kill}: no valid checkpoint is left: {problems}"
            content = load_checkpoint(path, "cpu")
            found = content["iter"]
            assert path == checkpoint_path(folder, found), f"kill {kill}: {path.name} holds iteration {found}"
            assert found >= last, f"kill {kill}: iteration {last} was saved, and {found} is what is left"
            assert torch.equal(content["weights"], make_content(found, options.megabytes)["weights"])
            last = found
    print(f"{options.kills} kills, {torn} in the midst of a file: the newest valid checkpoint loaded each time")


if __name__ == "__main__":
    main()
