"""Start real jobs, injure them, and look at what is left."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.commands import BIN, start
from support.machine import patience, read_proc, wait_until

PROGRAMS = Path(__file__).parents[1] / "faults"
LIMIT_S = 10.0
"""What the project promises on an idle machine: noticed, and nothing left, within this many seconds."""

Record = Callable[..., None]
"""Type of the fixture `record` of tests/faults."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    status: int
    stdout: str
    stderr: str
    noticed_s: float
    """From the fault to the end of the command."""
    gone_s: float
    """From there until no process of the job is left."""

    @property
    def last_block(self) -> str:
        """The block that ends the output on the console."""
        found = re.search(r"-{100}\n(FAILED: (?:(?!-{100}).)*)\n-{100}\n\Z", self.stderr, re.DOTALL)
        assert found is not None, f"the console does not end with a block:\n{self.stderr[-3000:]}"
        return found[1]


@dataclass
class Job:
    """A command and everything that it starts."""

    command: list[str]
    folder: Path
    environ: dict[str, str] = field(default_factory=dict)
    prefix: list[str] = field(default_factory=list)
    out: Path | None = None
    """Where its output goes, if not into the folder."""
    ignored: tuple[signal.Signals, ...] = ()
    """Signals that it begins with ignored; all others have their default, whoever started the tests."""
    host: int | None = None
    """A process whose network, host name and mounts it gets."""
    exec_it: bool = False
    """Whether it is executed, and not forked from a process that has imported what it imports."""

    def __post_init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.marker = self.folder / "fault"
        """Written at the moment of a fault that the job causes by itself; holds the time."""
        environ = os.environ | {
            "CUDA_VISIBLE_DEVICES": "",
            "FAULT_MARKER": str(self.marker),
            "MJTRAIN_TEST_JOB": self.mark,
        }
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PROGRAMS), os.environ.get("PYTHONPATH"))))
        self._out = self.out or self.folder
        self._stdout = (self._out / "stdout").open("w+")
        self._stderr = (self._out / "stderr").open("w+")
        self.process = start(
            [*self.prefix, *self.command],
            cwd=self.folder,
            environ=environ | self.environ,
            stdout=self._stdout,
            stderr=self._stderr,
            ignored=self.ignored,
            host=self.host,
            exec_it=self.exec_it,
        )

    def processes(self) -> list[int]:
        """All living processes that the command has started, and itself."""
        mark = f"MJTRAIN_TEST_JOB={self.mark}".encode()
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [pid for pid in pids if self._began(pid) or mark in read_proc(pid, "environ")]

    def _began(self, pid: int) -> bool:
        """Whether a living process is the command, or a fork of it, whose environment /proc does not show."""
        if isinstance(self.process, subprocess.Popen):
            return False
        state, _, _, session = read_proc(pid, "stat").decode(errors="replace").rpartition(")")[2].split()[:4] or "ZZZZ"
        return state not in "ZX" and session == str(self.process.pid)

    def listening(self) -> set[tuple[str, int]]:
        """Addresses and ports on which the job's processes listen."""
        inodes = set()
        for pid in self.processes():
            for path in Path(f"/proc/{pid}/fd").glob("*"):
                try:
                    inodes |= set(re.findall(r"socket:\[(\d+)\]", str(path.readlink())))
                except OSError:
                    continue
        return {(address, port) for address, port, inode in listening_sockets() if inode in inodes}

    def injected(self) -> list[dict[str, Any]]:
        """Return the events of the faults that --inject-fault has caused in its run."""
        (metrics,) = self.folder.glob("logs/*/*/metrics.jsonl")
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        return [row for row in rows if row.get("event") == "fault"]

    def wait_for(self, text: str, stream: str = "stdout") -> None:
        """Wait until the running command has printed a text."""
        self._wait_until(lambda: text in (self._out / stream).read_text(), f"{text!r} was printed")

    def wait_for_file(self, path: Path) -> None:
        """Wait until the running command has written a file."""
        self._wait_until(path.exists, f"{path} was written")

    def wait_for_processes(self, number: int) -> None:
        """Wait until the running command has this many processes, itself included."""
        self._wait_until(lambda: len(self.processes()) >= number, f"{number} processes")

    def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            ended = self.process.poll() is not None
            if condition():
                return True
            assert not ended, (self._out / "stderr").read_text()
            return False

        wait_until(holds, what)

    def wait_until_alone(self) -> float:
        """Wait until the command has no processes besides itself; return the time."""
        wait_until(lambda: len(self.processes()) <= 1, "the command has no other processes")
        return time.time()

    def kill(self, signum: int) -> float:
        """Signal the command; return the time."""
        now = time.time()
        self.process.send_signal(signum)
        return now

    def finish(self, since: float | None = None, timeout_s: float = 60.0) -> Outcome:
        """Wait for the end and for the processes to go.

        Args:
            since: When the fault was; None where the job has written it down itself, or as an event of its run.
            timeout_s: How long it may take on an idle machine.
        """
        try:
            status = self.process.wait(patience(timeout_s))
            ended = time.time()
            while self.processes() and time.time() < ended + patience(LIMIT_S):
                time.sleep(0.02)
            gone_s = time.time() - ended
            left = {pid: read_proc(pid, "cmdline") for pid in self.processes()}
        finally:
            self.clean_up()
        assert left == {}, f"left behind: {left}"
        assert not self.listening()
        if since is None:
            since = float(self.marker.read_text()) if self.marker.exists() else float(self.injected()[-1]["time"])
        for stream in (self._stdout, self._stderr):
            stream.seek(0)
        return Outcome(
            status=status,
            stdout=self._stdout.read(),
            stderr=self._stderr.read(),
            noticed_s=ended - since,
            gone_s=gone_s,
        )

    def clean_up(self) -> None:
        """Kill what is left of this job."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def listening_sockets() -> list[tuple[str, int, str]]:
    """Address, port and inode of every TCP socket that listens."""
    rows = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            columns = line.split()
            address, port = columns[1].split(":")
            if columns[3] == "0A":
                rows.append((address, int(port, 16), columns[9]))
    return rows


def function(
    folder: Path,
    name: str,
    *args: str,
    ranks: int = 2,
    prefix: tuple[str, ...] = (),
    exec_it: bool = False,
    **environ: str,
) -> Job:
    """A job of functions.py; `prefix` is a command that starts it."""
    command = [sys.executable, str(PROGRAMS / "functions.py"), str(ranks), name, *args]
    return Job(command, folder, environ, prefix=[*prefix], exec_it=exec_it)


def program(folder: Path, source: str, **environ: str) -> Job:
    """A job of a program of its own."""
    path = folder / "program.py"
    path.write_text(source)
    return Job([sys.executable, str(path)], folder, environ)


def training(
    folder: Path, *args: str, ranks: int = 2, prefix: tuple[str, ...] = (), exec_it: bool = False, **environ: str
) -> Job:
    """A job of the command train with the task of task.py; `prefix` is a command that starts it."""
    task = f"{PROGRAMS / 'task.py'}:make"
    command = [str(BIN / "train"), task, "--gpu-ids", "None", "--num-workers", str(ranks), "--log-root", "logs"]
    return Job([*command, *args], folder, environ, prefix=[*prefix], exec_it=exec_it)
