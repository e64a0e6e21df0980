"""Does a run that is hurt in every way end as one that is left alone, bit for bit?

    uv run --extra storage benchmarks/disturbed.py [--kills 20] [--stops 2] [--seed 0]

Trains Cartpole-Balance on two ranks, twice. One run is left alone. In the other one, random ranks get SIGKILL at random
moments (--max-restarts starts them again); the command gets SIGTERM at random moments, and is given again; and once all
of its processes are killed and its folder is deleted, as if its host were lost, and the same command begins in an empty
folder with what the storage holds (--checkpoint-url, --resume auto). Ends with status 1 unless the last checkpoints of
both runs are the same, byte for byte, and no process is left.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SAVE_INTERVAL = 5
MARKER = "DISTURBED_RUN"


def list_processes(mark: str) -> list[int]:
    """List the living processes that carry a mark in their environment."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            try:
                is_alive = (path / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
                if is_alive and f"{MARKER}={mark}".encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
    return found


def list_ranks(mark: str) -> list[int]:
    """List the ranks: they hold a file for their stack open."""
    found = []
    for pid in list_processes(mark):
        try:
            names = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        if any("/stack_" in name for name in names):
            found.append(pid)
    return found


def count_iterations(log_root: Path) -> int:
    """Return the last iteration on record."""
    lines = [line for path in log_root.glob("*/*/metrics.jsonl") for line in path.read_text().split("\n")[:-1]]
    return max((row["iteration"] for row in map(json.loads, lines) if "event" not in row), default=0)


def find_last(log_root: Path, num_iterations: int) -> Path | None:
    """Return the last checkpoint of a run that came to its end."""
    return next(iter(log_root.glob(f"*/*/model_{num_iterations}.pt")), None)


class Run:
    """The command train, which is given again as often as needed."""

    def __init__(self, folder: Path, num_iterations: int, seed: int, *, mark: str) -> None:
        """Prepare it; it starts with the first `start`."""
        folder.mkdir()
        self.folder, self.mark, self.num_iterations = folder, mark, num_iterations
        self.host = 0
        self._command = [sys.executable, "-m", "mjtrain.cli.train", "Cartpole-Balance", "--gpu-ids", "None"]
        self._command += ["--num-workers", "2", "--num-envs", "32", "--max-iterations", str(num_iterations)]
        self._command += ["--seed", str(seed), "--agent.save-interval", str(SAVE_INTERVAL), "--logger", "none"]
        self._command += ["--max-restarts", "99", "--resume", "auto", "--checkpoint-url", f"file://{folder}/storage"]

    @property
    def log_root(self) -> Path:
        """Where it writes, on the host where it is now."""
        return self.folder / f"host_{self.host}"

    def start(self) -> None:
        """Give the command."""
        with (self.folder / "console").open("a") as console:
            self.process = subprocess.Popen(
                [*self._command, "--log-root", str(self.log_root)],
                env=os.environ | {MARKER: self.mark},
                stdout=console,
                stderr=console,
            )

    def is_over(self) -> bool:
        """Whether it came to its end."""
        status = self.process.poll()
        if status not in (None, 0):
            raise SystemExit(f"status {status}\n{(self.folder / 'console').read_text()[-3000:]}")
        return status == 0

    def kill_a_rank(self, source: random.Random) -> None:
        """Kill one, as soon as both run."""
        while len(ranks := list_ranks(self.mark)) < 2 and not self.is_over():
            time.sleep(0.05)
        if ranks:
            os.kill(source.choice(ranks), signal.SIGKILL)

    def stop(self) -> None:
        """Stop it by SIGTERM, and continue."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait()
        if status != 128 + signal.SIGTERM:
            raise SystemExit(f"status {status} after SIGTERM\n{(self.folder / 'console').read_text()[-3000:]}")
        self.start()

    def lose_host(self) -> None:
        """Lose all processes and the folder, and continue elsewhere."""
        while pids := list_processes(self.mark):
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        self.process.wait()
        shutil.rmtree(self.log_root)
        self.host += 1
        self.start()


def disturb(run: Run, kills: int, stops: int, source: random.Random) -> None:
    """Have everything happen, one after the other, while the run continues."""
    faults = ["kill a rank"] * kills + ["stop"] * stops + ["lose the host"]
    source.shuffle(faults)
    run.start()
    for fault in faults:
        moment = count_iterations(run.log_root) + source.randrange(1, 2 * SAVE_INTERVAL)
        while count_iterations(run.log_root) < moment:
            if run.is_over():
                raise SystemExit(f"the run was over before: {fault}")
            time.sleep(0.02)
        print(f"{fault} in iteration {count_iterations(run.log_root) + 1}", flush=True)
        if fault == "kill a rank":
            run.kill_a_rank(source)
        elif fault == "stop":
            run.stop()
        else:
            run.lose_host()
    while not run.is_over():
        time.sleep(0.2)


def main() -> None:
    """Train twice, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--stops", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    num_iterations = 3 * SAVE_INTERVAL * (options.kills + options.stops + 2)
    with tempfile.TemporaryDirectory() as name:
        mark = f"{os.getpid()}_{time.time_ns()}"
        alone, hurt = (
            Run(Path(name) / kind, num_iterations, options.seed, mark=f"{mark}_{kind}") for kind in ("alone", "hurt")
        )
        alone.start()
        while not alone.is_over():
            time.sleep(0.2)
        disturb(hurt, options.kills, options.stops, random.Random(options.seed))
        paths = [find_last(run.log_root, num_iterations) for run in (alone, hurt)]
        digests = ["none" if path is None else hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
        print(f"model_{num_iterations}.pt of the run left alone: {digests[0]}\nof the one that was hurt: {digests[1]}")
        left = list_processes(alone.mark) + list_processes(hurt.mark)
    if left:
        print(f"WRONG: processes {left} are left")
    if len(set(digests)) > 1 or "none" in digests:
        print("WRONG: the checkpoints differ")
    sys.exit(1 if left or len(set(digests)) > 1 or "none" in digests else 0)


if __name__ == "__main__":
    main()
