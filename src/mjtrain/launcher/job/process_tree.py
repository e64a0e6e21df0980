"""The launcher's side of the keeper: start a job's processes below it, and end them all."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from mjtrain.launcher.ipc.processes import JOB_VARIABLE, list_members, send_signal

_END_PATIENCE_S = 20.0


class ProcessTree:
    """Everything that a job has running, in one hand."""

    def __init__(self, scratch: Path, environ: dict[str, str], log: IO[bytes]) -> None:
        """Start keeper and starter.

        Args:
            scratch: The job's folder; its name is the job's id.
            environ: Environment of all processes of the job.
            log: Where their output goes as long as the ranks have no streams of their own.
        """
        self._job_id = scratch.name
        self.control, theirs = socket.socketpair()
        python = [sys.executable, "-P", "-m"]
        command = [*python, "mjtrain.launcher.job.spawner", str(scratch)]
        keeper = [
            *python,
            "mjtrain.launcher.job.reaper",
            str(os.getpid()),
            str(theirs.fileno()),
            str(scratch),
            *command,
        ]
        with theirs:
            self._keeper = subprocess.Popen(
                keeper,
                env={**environ, JOB_VARIABLE: self._job_id},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # signals from the terminal are for the launcher alone
            )
        self.control.setblocking(False)
        self._buffer = b""
        self._starter: int | None = None
        self.starter_exit_code: int | None = None
        """Status of the starter once it has ended, or the negative number of the signal that killed it."""
        self.lost = False
        """Whether the keeper itself has ended."""
        self._gone = False

    def read(self) -> None:
        """Take in what the keeper says; call it when `control` is readable."""
        try:
            data = self.control.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.lost = not data
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        if "started" in message:
            self._starter = message["started"]
        elif message.get("exited") == self._starter:
            self.starter_exit_code = message["exit_code"]
        self._gone = self._gone or "gone" in message

    def end(self, now: list[int], *, wait_s: float) -> None:
        """Return when no process of the job is left.

        Args:
            now: Processes to kill at once, and the starter with them; the others get SIGTERM first.
            wait_s: Time that the others have to end by themselves before that, in seconds.
        """
        if now and self._starter is not None:
            now = [*now, self._starter]
        order = {"kill": now, "wait_s": wait_s, "grace_s": 1.5}
        try:
            self.control.setblocking(True)
            self.control.sendall(json.dumps(order).encode() + b"\n")
            self.control.settimeout(wait_s + _END_PATIENCE_S)
            while not self._gone and not self.lost:
                self.read()
        except OSError:
            self.lost = True
        if not self._gone:
            self._keeper.kill()
            self._end_without_keeper()
        self._keeper.wait()
        self.control.close()

    def _end_without_keeper(self) -> None:
        """Find by the job's id what the keeper would have found by descent."""
        deadline = time.monotonic() + _END_PATIENCE_S
        while (left := set(list_members(self._job_id)) - {os.getpid()}) and time.monotonic() < deadline:
            send_signal(left, signal.SIGKILL)
            time.sleep(0.02)
        if left:
            raise RuntimeError(f"processes {sorted(left)} of this job cannot be ended")
