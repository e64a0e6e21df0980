"""The process that outlives the launcher, for as long as it takes to leave nothing behind.

It stands between the launcher and everything else of a job. Whoever loses its parent in the job becomes its child, so
"no children" means that nothing of the job is left; and when the launcher goes, by whatever signal, it ends the rest.

Run as `python -m mjtrain.launcher.job.reaper LAUNCHER_PID CONTROL_FD SCRATCH COMMAND...`; the command gets the keeper's
process id as its last argument. The launcher writes `{"kill": [pid, ...], "wait_s": s, "grace_s": s}` to the control
socket to end the job; the keeper writes `{"started": pid}` for the command, `{"exited": pid, "exit_code": n}` for each
child that ended, and `{"gone": true}` at the very end.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from mjtrain.launcher.ipc.processes import JOB_VARIABLE, adopt_orphans, list_descendants, list_members, send_signal
from mjtrain.launcher.ipc.signals import STOP_SIGNALS

ORPHAN_GRACE_S = 1.5
"""Time between SIGTERM and SIGKILL when the launcher is gone, in seconds."""

_LOOK_INTERVAL_S = 0.5


class Reaper:
    """Starts the command, reports who ends, and ends everything."""

    def __init__(self, launcher: int, control: socket.socket, scratch: str) -> None:
        self._launcher = launcher
        self._control = control
        self._scratch = scratch
        self._job_id = os.environ[JOB_VARIABLE]

    def run(self, command: list[str]) -> None:
        """Start the command, and return when nothing of the job is left."""
        for signum in STOP_SIGNALS:
            signal.signal(signum, lambda *_: None)  # the launcher decides; not ignored, as children would inherit that
        adopt_orphans()
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        child = subprocess.Popen([*command, str(os.getpid())])
        self._tell({"started": child.pid})
        order = None
        while order is None:
            ready, _, _ = select.select([self._control, wake_read], [], [], _LOOK_INTERVAL_S)
            if wake_read in ready:
                os.read(wake_read, 4096)
            self._reap()
            if self._control in ready:
                order = self._receive()
            elif os.getppid() != self._launcher:  # a fork of the launcher may hold its end of the socket open
                order = {}
        if not order:
            order = {"kill": [], "wait_s": 0.0, "grace_s": ORPHAN_GRACE_S}
        self._end(order["kill"], order["wait_s"], order["grace_s"])
        if os.getppid() != self._launcher:
            shutil.rmtree(self._scratch, ignore_errors=True)
        self._tell({"gone": True})

    def _receive(self) -> dict[str, Any]:
        """Read the order to end; empty when the launcher is gone."""
        try:
            line = self._control.makefile("rb").readline()
        except OSError:
            line = b""
        return json.loads(line) if line.endswith(b"\n") else {}

    def _end(self, now: list[int], wait_s: float, grace_s: float) -> None:
        """End every process.

        Args:
            now: Whom to kill at once.
            wait_s: Time that the others have to end by themselves, in seconds.
            grace_s: Time between SIGTERM and SIGKILL after that, in seconds.
        """
        send_signal(now, signal.SIGKILL)
        ask_at = time.monotonic() + wait_s
        kill_at, asked = ask_at + grace_s, False
        while self._reap():
            if time.monotonic() >= kill_at:
                send_signal(self._everybody(), signal.SIGKILL)
            elif not asked and time.monotonic() >= ask_at:
                send_signal(self._everybody(), signal.SIGTERM)
                asked = True
            time.sleep(0.01)
        # Nobody of the family is left; whoever is of the job all the same was started through somebody else.
        send_signal(self._everybody(), signal.SIGKILL)

    def _everybody(self) -> set[int]:
        me = {os.getpid(), self._launcher}
        return {*list_descendants(os.getpid()), *list_members(self._job_id)} - me

    def _reap(self) -> bool:
        """Report the children that have ended; return whether there are others."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._tell({"exited": pid, "exit_code": os.waitstatus_to_exitcode(status)})

    def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the launcher is gone
            self._control.sendall(json.dumps(message).encode() + b"\n")


def main() -> None:
    """Be the keeper that the arguments describe."""
    launcher, control_fd, scratch, *command = sys.argv[1:]
    control = socket.socket(fileno=int(control_fd))
    control.set_inheritable(False)
    Reaper(int(launcher), control, scratch).run(command)


if __name__ == "__main__":
    main()
