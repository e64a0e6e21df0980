"""From Enter to the first line of a two-rank job: mjtrain.launch against torch's own launcher, in turn.

    uv run benchmarks/launch.py [--rounds 7]

Both start the same function in two processes that have joined a gloo process group, and print a line from rank 0. The
table shows the seconds until that line and until the command has ended; medians over the rounds, after a warm-up.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FUNCTION = """
import torch
import torch.distributed as dist


def speak(rank):
    total = torch.ones(1)
    dist.all_reduce(total)
    if rank == 0:
        print(f"first line, {int(total)} ranks", flush=True)
"""

WITH_TORCHRUN = """
from function import speak
import torch.distributed as dist

dist.init_process_group("gloo")
speak(dist.get_rank())
dist.destroy_process_group()
"""

WITH_MJTRAIN = """
import mjtrain


def run(context):
    from function import speak

    speak(context.rank)


mjtrain.launch(run, launch=mjtrain.LaunchConfig(gpu_ids=None, num_workers=2))
"""


def measure(command: list[str], folder: Path) -> tuple[float, float]:
    """Return the seconds until the first line and until the end."""
    begin = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        first_s = time.perf_counter() - begin
        assert line == "first line, 2 ranks\n", f"{command}: {line!r}"
        assert process.wait() == 0
        return first_s, time.perf_counter() - begin


def main() -> None:
    """Measure in turn, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in (("function", FUNCTION), ("torchrun", WITH_TORCHRUN), ("mjtrain_launch", WITH_MJTRAIN)):
            (folder / f"{file}.py").write_text(text)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        commands = {
            "torch.distributed.run": [*torchrun, "torchrun.py"],
            "mjtrain.launch": [sys.executable, "mjtrain_launch.py"],
        }
        times: dict[str, list[tuple[float, float]]] = {label: [] for label in commands}
        for turn in range(rounds + 1):
            for label, command in commands.items():
                seconds = measure(command, folder)
                if turn:
                    times[label].append(seconds)
    print(f"{'seconds':24}{'first line':>12}{'min':>8}{'max':>8}{'end':>10}")
    for label, rows in times.items():
        firsts, ends = zip(*rows, strict=True)
        median_s, end_s = statistics.median(firsts), statistics.median(ends)
        print(f"{label:24}{median_s:12.2f}{min(firsts):8.2f}{max(firsts):8.2f}{end_s:10.2f}")


if __name__ == "__main__":
    main()
