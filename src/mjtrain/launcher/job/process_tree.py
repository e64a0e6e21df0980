"""The processes of a job on this host, from the launcher's side: started below a reaper, and ended by it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from mjtrain.launcher.ipc.messages import MessageReader, Sender, await_readable
from mjtrain.runtime.processes import JOB_VARIABLE, list_job_processes, send_signal
from mjtrain.runtime.standard_streams import try_to_write_to_stderr

_END_PATIENCE_S = 20.0

_TELL_S = 5.0
"""Time without an answer of the reaper after which a line says what is waited for."""

_GRACE_S = 1.5
"""Time between SIGTERM and SIGKILL."""


class ProcessTree:
    """All processes of a job."""

    def __init__(
        self,
        scratch: Path,
        environ: dict[str, str],
        log: IO[bytes],
        command: Sequence[str],
        *,
        inherited: Sequence[int] = (),
    ) -> None:
        """Start the reaper, which starts the job's first process.

        Args:
            scratch: The job's folder; its name is the job's id. The reaper removes it if this process ends first.
            command: A module to run and its arguments; the reaper's process id becomes the last of them.
            inherited: File descriptors that stay open in the reaper, until no process of the job is left.
        """
        self._job_id = scratch.name
        self.control, theirs = socket.socketpair()
        python = [sys.executable, "-P", "-m"]
        arguments = [str(os.getpid()), str(theirs.fileno()), str(scratch)]
        with theirs:
            self._reaper = subprocess.Popen(
                [*python, "mjtrain.launcher.job.reaper", *arguments, *python, *command],
                env={**environ, JOB_VARIABLE: self._job_id},
                pass_fds=[theirs.fileno(), *inherited],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # signals from the terminal are for the launcher alone
            )
        self.control.setblocking(False)
        self._reader = MessageReader()
        self.first_pid: int | None = None
        """Process id of the first process, once it runs."""
        self.first_exit_code: int | None = None
        """Status of the first process once it has ended, or the negative number of the signal that killed it."""
        self.lost = False
        """Whether the reaper itself has ended."""
        self._gone = False

    def read(self) -> None:
        """Take in the reaper's messages; call it when `control` is readable."""
        try:
            data = self.control.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.lost = not data
        for message, _ in self._reader.feed(data):
            self._on_message(message)

    def _on_message(self, message: dict[str, Any]) -> None:
        if message["kind"] == "started":
            self.first_pid = message["pid"]
        elif message["kind"] == "exited" and message["pid"] == self.first_pid:
            self.first_exit_code = message["exit_code"]
        elif message["kind"] == "gone":
            self._gone = True

    def end(self, now: list[int], *, wait_s: float) -> list[int]:
        """Return when no process of the job is left, or none that the kernel lets go.

        Args:
            now: Processes to kill at once, and the first process with them; the others get SIGTERM first.
            wait_s: Time that the others have to end by themselves before that, in seconds.

        Returns:
            Processes that are left in uninterruptible sleep. They have SIGKILL pending, and run no more code.
        """
        left: list[int] = []
        if now and self.first_pid is not None:
            now = [*now, self.first_pid]
        try:
            self.control.setblocking(True)
            Sender(self.control).send("end", kill=now, wait_s=wait_s, grace_s=_GRACE_S)
            self.control.setblocking(False)
            self._await_gone(wait_s)
        except OSError:
            self.lost = True
        if not self._gone:
            self._reaper.kill()
            left = self._end_without_reaper()
        self._reaper.wait()
        self.control.close()
        return left

    def _await_gone(self, wait_s: float) -> None:
        """Read until the reaper says that no process of the job is left; say so once if that takes long."""
        begin_s, is_told = time.monotonic(), False
        while not self._gone and not self.lost and time.monotonic() - begin_s < wait_s + _END_PATIENCE_S:
            if await_readable(self.control, wait_s=0.5):
                self.read()
            elif not is_told and time.monotonic() - begin_s > wait_s + _TELL_S:
                is_told = True
                try_to_write_to_stderr(
                    f"waiting until all processes of this job have ended, at most {_END_PATIENCE_S - _TELL_S:g} s; "
                    f"process {self._reaper.pid} ends them, and has not said that it is done"
                )

    def _end_without_reaper(self) -> list[int]:
        """Find by the job's id what the reaper would have found by descent; return what cannot be ended."""
        deadline = time.monotonic() + _END_PATIENCE_S
        while (left := set(list_job_processes(self._job_id)) - {os.getpid()}) and time.monotonic() < deadline:
            send_signal(left, signal.SIGKILL)
            time.sleep(0.02)
        return sorted(left)
