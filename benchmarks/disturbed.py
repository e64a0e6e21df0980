"""Does a run that is hurt in every way end as one that is left alone, bit for bit?

    uv run --extra storage benchmarks/disturbed.py [--kills 20] [--stops 2] [--freezes 30 200] [--seconds 3] [--seed 0]

Trains Cartpole-Balance on two ranks, twice. One run is left alone. In the other one, random ranks get SIGKILL at random
moments (--max-restarts starts them again); the command gets SIGTERM at random moments, and is given again; and once all
of its processes are killed and its folder is deleted, as if its host were lost, and the same command begins in an empty
folder with what the storage holds (--checkpoint-url, --resume auto).

--freezes: for each number, the file system with everything that the run writes (run directory, logs, console, storage)
does not respond for so many seconds. It is a loop mount that fsfreeze freezes, which needs root. --seconds: so many
times, another process resumes the run that is in progress, while ranks may be killed. It must be refused (status 2).

Ends with status 1 unless the last checkpoints of both runs are the same, byte for byte, the disturbed one has recorded
every iteration since it lost its host, each once, and no process is left.
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
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


def list_iterations(log_root: Path) -> list[int]:
    """Return the iterations on record."""
    lines = [line for path in log_root.glob("*/*/metrics.jsonl") for line in path.read_text().split("\n")[:-1]]
    return [row["iteration"] for row in map(json.loads, lines) if "event" not in row]


def count_iterations(log_root: Path) -> int:
    """Return the last iteration on record."""
    return max(list_iterations(log_root), default=0)


@contextmanager
def mounted(folder: Path, image: Path) -> Iterator[None]:
    """Mount a small file system at a folder, which exists, for a with block."""
    image.touch()
    os.truncate(image, 512 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", folder], check=False, capture_output=True)
        subprocess.run(["umount", "-l", folder], check=True)


def find_last(log_root: Path, num_iterations: int) -> Path | None:
    """Return the last checkpoint of a run that came to its end."""
    return next(iter(log_root.glob(f"*/*/model_{num_iterations}.pt")), None)


class Run:
    """The command train, which is given again as often as needed."""

    def __init__(self, folder: Path, num_iterations: int, seed: int, *, mark: str) -> None:
        """Prepare it; it starts with the first `start`."""
        folder.mkdir(exist_ok=True)
        self.folder, self.mark, self.num_iterations = folder, mark, num_iterations
        self.host, self.num_refused = 0, 0
        self._others: list[subprocess.Popen[str]] = []
        self._command = [sys.executable, "-m", "mjtrain.cli.train", "Cartpole-Balance", "--gpu-ids", "None"]
        self._command += ["--num-workers", "2", "--num-envs", "32", "--max-iterations", str(num_iterations)]
        self._command += ["--seed", str(seed), "--agent.save-interval", str(SAVE_INTERVAL), "--logger", "none"]
        self._command += ["--max-restarts", "99", "--checkpoint-url", f"file://{folder}/storage"]

    @property
    def log_root(self) -> Path:
        """Where it writes, on the host where it is now."""
        return self.folder / f"host_{self.host}"

    def start(self) -> None:
        """Give the command."""
        with (self.folder / "console").open("a") as console:
            self.process = subprocess.Popen(
                [*self._command, "--log-root", str(self.log_root), "--resume", "auto"],
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

    def freeze(self, duration_s: float) -> None:
        """Have nothing written in the meantime."""
        subprocess.run(["fsfreeze", "-f", self.folder], check=True)
        time.sleep(duration_s)
        subprocess.run(["fsfreeze", "-u", self.folder], check=True)

    def start_another(self, source: random.Random) -> None:
        """Have another process resume the run in progress; `await_others` judges it."""
        (run_dir,) = {path.parent for path in self.log_root.glob("*/*/metrics.jsonl")}
        resume = source.choice(("auto", str(run_dir)))
        command = [*self._command, "--log-root", str(self.log_root), "--resume", resume]
        environ = os.environ | {MARKER: self.mark}
        other = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._others.append(other)

    def await_others(self) -> None:
        """Wait until each of the other processes has been refused."""
        while self._others:
            other = self._others.pop()
            output, _ = other.communicate()
            if other.returncode != 2 or "another process" not in output:
                raise SystemExit(f"a second --resume ended with status {other.returncode}\n{output}")
            self.num_refused += 1

    def stop(self) -> None:
        """Stop it by SIGTERM, and continue."""
        self.await_others()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait()
        if status != 128 + signal.SIGTERM:
            raise SystemExit(f"status {status} after SIGTERM\n{(self.folder / 'console').read_text()[-3000:]}")
        self.start()

    def lose_host(self) -> None:
        """Lose all processes and the folder, and continue elsewhere."""
        self.await_others()
        while pids := list_processes(self.mark):
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        self.process.wait()
        shutil.rmtree(self.log_root)
        self.host += 1
        self.start()


def disturb(run: Run, options: argparse.Namespace, source: random.Random) -> None:
    """Have everything happen, one after the other, while the run continues."""
    faults = {
        **{f"kill a rank ({n})": lambda: run.kill_a_rank(source) for n in range(options.kills)},
        **{f"stop ({n})": run.stop for n in range(options.stops)},
        **{
            f"freeze for {length_s:g} s ({n})": partial(run.freeze, length_s)
            for n, length_s in enumerate(options.freezes)
        },
        **{f"second --resume ({n})": lambda: run.start_another(source) for n in range(options.seconds)},
        "lose the host": run.lose_host,
    }
    order = list(faults)
    source.shuffle(order)
    run.start()
    for fault in order:
        moment = count_iterations(run.log_root) + source.randrange(1, 2 * SAVE_INTERVAL)
        while count_iterations(run.log_root) < moment:
            if run.is_over():
                raise SystemExit(f"the run was over before: {fault}")
            time.sleep(0.02)
        print(f"{fault} in iteration {count_iterations(run.log_root) + 1}", flush=True)
        faults[fault]()
    while not run.is_over():
        time.sleep(0.2)
    run.await_others()


def find_problems(alone: Run, hurt: Run) -> list[str]:
    """Compare the two runs; what is wrong, in words."""
    last = alone.num_iterations
    paths = [find_last(run.log_root, last) for run in (alone, hurt)]
    digests = ["none" if path is None else hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    print(f"model_{last}.pt of the run left alone: {digests[0]}\nof the one that was hurt: {digests[1]}")
    problems = ["the checkpoints differ"] if len(set(digests)) > 1 or "none" in digests else []
    iterations = list_iterations(hurt.log_root)
    if iterations != list(range(iterations[0], last + 1)):
        problems.append(f"metrics.jsonl has the iterations {iterations}")
    if left := list_processes(alone.mark) + list_processes(hurt.mark):
        problems.append(f"processes {left} are left")
    return problems


def main() -> None:
    """Train twice, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--stops", type=int, default=2)
    parser.add_argument("--freezes", type=float, nargs="*", default=[])
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    num_faults = options.kills + options.stops + len(options.freezes) + options.seconds
    num_iterations = 3 * SAVE_INTERVAL * (num_faults + 2)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        mark, folder = f"{os.getpid()}_{time.time_ns()}", Path(name)
        if options.freezes:
            (folder / "hurt").mkdir()
            stack.enter_context(mounted(folder / "hurt", folder / "image"))
        alone, hurt = (
            Run(folder / kind, num_iterations, options.seed, mark=f"{mark}_{kind}") for kind in ("alone", "hurt")
        )
        alone.start()
        while not alone.is_over():
            time.sleep(0.2)
        disturb(hurt, options, random.Random(options.seed))
        problems = find_problems(alone, hurt)
        print(f"{num_iterations} iterations; {hurt.num_refused} processes that resumed it as well were refused")
    for problem in problems:
        print(f"WRONG: {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
