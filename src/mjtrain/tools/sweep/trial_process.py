"""One run of the command train, with all processes that belong to it."""

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from mjtrain.launcher.failure import describe_exit
from mjtrain.launcher.ipc.event_loop import EventLoop
from mjtrain.launcher.job.process_tree import ProcessTree
from mjtrain.launcher.spawn import module_path
from mjtrain.runtime.processes import send_signal
from mjtrain.tools.sweep.slots import Slot

STOP_SLACK_S = 10.0
"""How much longer than train itself a sweep waits for the end of a run that it has stopped, in seconds."""

LEFTOVER_GRACE_S = 2.0
"""Time that processes have to end by themselves after the command, in seconds."""


class TrialProcess:
    """The command and what it has started.

    They are below a reaper, as the processes of any job. If this process is killed, the reaper ends them; if the reaper
    is killed, the kernel ends the command.
    """

    def __init__(self, arguments: list[str], slot: Slot, output: Path, loop: EventLoop, inherited: int) -> None:
        """Start it.

        Args:
            output: Beginning of the names of two files for what it prints, {output}.stdout and {output}.stderr; what is
                there is added to.

        Raises:
            OSError: The files cannot be written, or no process can be started.
        """
        self._loop = loop
        stdout, self._stderr = (output.with_name(f"{output.name}.{stream}") for stream in ("stdout", "stderr"))
        environ = {**os.environ, "PYTHONPATH": module_path()}
        if slot.gpus:
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
        places = [",".join(map(str, slot.cores)), str(stdout), str(self._stderr)]
        with self._stderr.open("ab", buffering=0) as log:
            self._began = log.tell()
            self._scratch = Path(tempfile.mkdtemp(prefix="mjtrain-"))
            command = ["mjtrain.tools.sweep.start_trial", *places, *arguments]
            self._tree = ProcessTree(self._scratch, environ, log, command, inherited=[inherited])
        loop.watch(self._tree.control, self._read)
        self._stop_deadline_s: float | None = None
        self._signalled = False
        self._closed = False

    @property
    def has_ended(self) -> bool:
        """Whether the command is over, or its reaper is."""
        return self._tree.first_exit_code is not None or self._tree.lost

    @property
    def has_succeeded(self) -> bool:
        """Whether the command ended with status 0."""
        return self._tree.first_exit_code == 0

    def stop(self, grace_s: float) -> None:
        """Send the command SIGTERM, upon which it has this long to save and end."""
        if self._stop_deadline_s is None:
            self._stop_deadline_s = time.monotonic() + grace_s + STOP_SLACK_S
            self._signal()

    def enforce(self) -> None:
        """End what was asked to stop and has not ended in time."""
        if self._stop_deadline_s is not None and time.monotonic() > self._stop_deadline_s and not self.has_ended:
            self.close()

    def close(self) -> None:
        """End all of its processes; returns when none is left."""
        if self._closed:
            return
        self._closed = True
        self._loop.unwatch(self._tree.control)
        self._tree.end([], wait_s=LEFTOVER_GRACE_S if self.has_ended else 0.0)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def describe_end(self) -> str:
        """Say in a line how a command that failed ended: its last words, or the signal that killed it."""
        code = self._tree.first_exit_code
        if code is None:
            return "its reaper process ended unexpectedly"
        if code < 0:
            return describe_exit(code)[0]
        try:
            text = self._stderr.read_bytes()[self._began :].decode(errors="replace")
        except OSError:
            text = ""
        lines = [line for line in text.splitlines() if line.strip(" -")]
        return lines[-1].strip().removeprefix("train: ") if lines else describe_exit(code)[0]

    def _read(self) -> None:
        self._tree.read()
        self._signal()
        if self._tree.lost:
            self._loop.unwatch(self._tree.control)

    def _signal(self) -> None:
        """Pass a request to stop on, as soon as the command runs."""
        if self._stop_deadline_s is None or self._signalled or self._tree.first_pid is None or self.has_ended:
            return
        self._signalled = True
        send_signal([self._tree.first_pid], signal.SIGTERM)
