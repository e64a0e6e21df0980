"""The reaper: a process between the launcher and all others of a job, which ends them when the launcher has gone.

It is a subreaper (see `PR_SET_CHILD_SUBREAPER`): a process of the job that loses its parent becomes its child. When it
has no children, no process of the job is left.

Run as `python -m mjtrain.launcher.job.reaper LAUNCHER_PID CONTROL_FD SCRATCH COMMAND...`; the command gets the reaper's
process id as its last argument. The messages on the control socket are listed in `mjtrain.launcher.ipc.messages`.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from mjtrain.launcher.ipc.messages import MessageReader, Sender, await_readable
from mjtrain.launcher.ipc.signals import STOP_SIGNALS, wakeup_pipe
from mjtrain.runtime.processes import JOB_VARIABLE, adopt_orphans, list_descendants, list_job_processes, send_signal

ORPHAN_GRACE_S = 1.5
"""Time between SIGTERM and SIGKILL when the launcher is gone, in seconds."""

_LOOK_INTERVAL_S = 0.5

_LAUNCHER_GONE = {"kill": [], "wait_s": 0.0, "grace_s": ORPHAN_GRACE_S}


class Reaper:
    """Starts the command, reports which children have ended, and ends all processes of the job."""

    def __init__(self, launcher: int, control: socket.socket, scratch: str) -> None:
        self._launcher = launcher
        self._control = control
        self._sender = Sender(control)
        self._reader = MessageReader()
        self._scratch = scratch
        self._job_id = os.environ[JOB_VARIABLE]

    def run(self, command: list[str]) -> None:
        """Start the command, and return when no process of the job is left."""
        for signum in (*STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(signum, lambda *_: None)  # the launcher decides; not ignored, as children would inherit that
        adopt_orphans()
        with wakeup_pipe() as wakeup:
            child = subprocess.Popen([*command, str(os.getpid())])
            self._tell("started", pid=child.pid)
            order = None
            while order is None:
                ready = await_readable(self._control, wakeup, wait_s=_LOOK_INTERVAL_S)
                if wakeup in ready:
                    os.read(wakeup, 4096)
                self._reap()
                if self._control.fileno() in ready:
                    order = self._receive()
                elif os.getppid() != self._launcher:  # a fork of the launcher may hold its end of the socket open
                    order = _LAUNCHER_GONE
            self._end(order["kill"], order["wait_s"], order["grace_s"])
        if os.getppid() != self._launcher:
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._tell("gone")

    def _receive(self) -> dict[str, Any] | None:
        """Return the order to end, if it has arrived or the launcher is gone."""
        try:
            data = self._control.recv(65536)
        except OSError:
            data = b""
        if not data:
            return _LAUNCHER_GONE
        return next((message for message, _ in self._reader.feed(data) if message["kind"] == "end"), None)

    def _end(self, now: list[int], wait_s: float, grace_s: float) -> None:
        send_signal({*now} & {*list_descendants(os.getpid())}, signal.SIGKILL)
        ask_at = time.monotonic() + wait_s
        kill_at, asked = ask_at + grace_s, False
        while self._reap():
            if time.monotonic() >= kill_at:
                send_signal(self._list_all(), signal.SIGKILL)
            elif not asked and time.monotonic() >= ask_at:
                send_signal(self._list_all(), signal.SIGTERM)
                asked = True
            time.sleep(0.01)
        # No descendants remain. A process that still belongs to the job was started by a process outside of it.
        send_signal(self._list_all(), signal.SIGKILL)

    def _list_all(self) -> set[int]:
        others = {*list_descendants(os.getpid()), *list_job_processes(self._job_id)}
        return others - {os.getpid(), self._launcher}

    def _reap(self) -> bool:
        """Report the children that have ended; return whether there are others."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._tell("exited", pid=pid, exit_code=os.waitstatus_to_exitcode(status))

    def _tell(self, kind: str, **fields: Any) -> None:
        with contextlib.suppress(OSError):  # the launcher is gone
            self._sender.send(kind, **fields)


def main() -> None:
    """Be the reaper that the arguments describe."""
    launcher, control_fd, scratch, *command = sys.argv[1:]
    control = socket.socket(fileno=int(control_fd))
    control.set_inheritable(False)
    Reaper(int(launcher), control, scratch).run(command)


if __name__ == "__main__":
    main()
