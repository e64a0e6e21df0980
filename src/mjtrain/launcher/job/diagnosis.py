"""Which ranks hang, and why a job failed: the one cause that is shown, by what supervisor and kernel know of ranks."""

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mjtrain.launcher.failure import Failure, describe_exit
from mjtrain.launcher.ipc.messages import Sender
from mjtrain.launcher.job.outputs import LogFile
from mjtrain.launcher.rank.spawned import STACK_SIGNAL, stack_file
from mjtrain.runtime.errors import first_line_of
from mjtrain.runtime.machine import find_cgroups, read_text
from mjtrain.runtime.processes import is_ending, send_signal, signal_main_threads

_BEAT_MARGIN_S = 2.0
"""How much less than its time without progress a stopped rank may be silent: it sends a heartbeat once a second."""

OTHER_HOST_S = 10.0
"""Where all ranks of a host wait, the one to blame is on another host, which gets this much longer to report it."""

_STACK_WAIT_S = 2.0
"""Time that ranks have to write their stacks to their files."""

_TAIL_LINES = 40
"""Lines of the spawner's log that are shown when no rank has reported anything."""


@dataclass(kw_only=True)
class RankState:
    """A rank, as seen from the launcher. Times are monotonic, in seconds."""

    rank: int
    pid: int
    host: str
    sender: Sender
    """Sends messages to it."""
    heard_s: float
    """When its last message arrived."""
    progressed_s: float
    """When it last made progress."""
    progress: int = 0
    phase: str = "start"
    waits: bool = False
    """Whether it waits for other ranks."""
    overdue: str = ""
    """Why it hangs by the limit that it has learned of its phase; empty if it does not."""
    done: bool = False
    """Whether its function has returned, or was interrupted as asked."""
    interrupted: bool = False
    """Whether its function was interrupted as asked."""
    report: dict[str, Any] | None = None
    """What the rank reported when it failed: the fields of the message `failed`."""
    pickled_error: bytes = b""
    lost_s: float | None = None
    """When it closed its connection, or its process ended, without a report."""
    exit_code: int | None = None
    """How its process ended: its status, or the negative number of the signal that killed it; None while not known."""

    def take_beat(self, message: dict[str, Any], now_s: float) -> None:
        """Take in a heartbeat."""
        if message["progress"] != self.progress:
            self.progress, self.progressed_s = message["progress"], now_s
        self.phase, self.waits, self.overdue = message["phase"], message["waits"], message["overdue"]


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Ranks that hang."""

    culprits: list[RankState]
    reason: str
    all_wait: bool = False
    """Whether all ranks wait for others, so that the cause is unknown."""


def find_hang(states: list[RankState], timeout_s: float, now_s: float, *, alone: bool = True) -> Hang | None:
    """Look for ranks that hang.

    A rank hangs when its process sends no heartbeat (it is stopped, or native code keeps Python's lock), or when it
    makes no progress, for the time-out or for as long as it has learned of its phase itself. A rank that waits for
    others is not to blame unless all of them do.

    Args:
        timeout_s: Time without a message or progress after which a rank hangs, in seconds.
        alone: Whether these are all ranks of the job, and none is on another host.
    """
    running = [state for state in states if not state.done]
    unresponsive = [state for state in running if now_s - state.heard_s > timeout_s]
    if unresponsive:
        return _make_stopped(unresponsive, timeout_s)
    stuck = [state for state in running if now_s - state.progressed_s > timeout_s]
    to_blame = [state for state in stuck if not state.waits]
    if silent := [state for state in to_blame if now_s - state.heard_s > timeout_s - _BEAT_MARGIN_S]:
        return _make_stopped(silent, timeout_s)
    if to_blame:
        return Hang(culprits=to_blame, reason=f"no progress for {timeout_s:g} s (--heartbeat-timeout-s)")
    overdue = [state for state in running if state.overdue]
    if overdue:
        return Hang(culprits=overdue, reason=overdue[0].overdue)
    patience_s = timeout_s if alone else timeout_s + OTHER_HOST_S
    if stuck and all(now_s - state.progressed_s > patience_s for state in running):
        return Hang(
            culprits=stuck,
            reason=f"no progress for {timeout_s:g} s (--heartbeat-timeout-s): all ranks wait for others",
            all_wait=True,
        )
    return None


def _make_stopped(states: list[RankState], timeout_s: float) -> Hang:
    reason = f"no heartbeat for {timeout_s:g} s: the process is stopped, or stuck in native code"
    return Hang(culprits=states, reason=reason)


class OomWatch:
    """Remembers what the kernel has reported so far, and afterwards tells what is new."""

    def __init__(self) -> None:
        names = ("memory.events", "memory.oom_control")
        files = (folder / name for folder in find_cgroups("memory") for name in names)
        counters = (file for file in files if _read_count(file) is not None)
        self._counter = next(counters, Path("/proc/vmstat"))  # the innermost cgroup that counts, or the whole machine
        self._count_before = _read_count(self._counter) or 0
        self._log: int | None = None
        with contextlib.suppress(OSError):  # often only root can read the kernel's log
            self._log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._log, 0, os.SEEK_END)

    def explain(self, pid: int) -> str | None:
        """Say in words that the out-of-memory killer ended this process, which got a SIGKILL; None if it did not."""
        if self._log is not None and re.search(rf"Killed process {pid}\b", self._read_log()):
            return "by the kernel's out-of-memory killer"
        if (_read_count(self._counter) or 0) > self._count_before:
            return "most likely by the kernel's out-of-memory killer, which was active meanwhile"
        return None

    def close(self) -> None:
        """Close the kernel's log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _read_log(self) -> str:
        assert self._log is not None
        records = []
        while True:
            try:
                records.append(os.read(self._log, 8192).decode(errors="replace"))
            except BrokenPipeError:
                continue  # records were overwritten before they were read; the next read continues after them
            except OSError:
                return "".join(records)


def _read_count(path: Path) -> int | None:
    found = re.search(r"^oom_kill (\d+)$", read_text(path), re.MULTILINE)
    return int(found[1]) if found else None


class Diagnosis:
    """Finds the cause among the ranks of one job on this host."""

    def __init__(
        self,
        scratch: Path,
        log_dir: Path | None,
        states: Mapping[int, RankState],
        logs: Mapping[int, LogFile],
        host: str,
    ) -> None:
        self._scratch = scratch
        self._states = states
        self._logs = logs
        self._oom = OomWatch()
        self._host_log_kept = log_dir is not None
        self.host_log = (log_dir or scratch) / f"{host}.log"
        """What the spawner and the torchrunx agent write."""

    def close(self) -> None:
        """Stop watching the kernel."""
        self._oom.close()

    def explain(
        self, spawner_exit_code: int | None, agent_lost: bool, exit_of_agent: tuple[int, int] | None = None
    ) -> Failure:
        """Find the cause: a process that ended without a report, else the earliest exception.

        An exception that only says that other ranks do not answer counts after all others.
        """
        states = self._states.values()
        lost = [state for state in states if state.lost_s is not None and not state.done]
        known = [state for state in lost if state.exit_code is not None]
        if known:
            return self._explain_exit(min(known, key=lambda state: state.lost_s or 0.0))
        if lost and not agent_lost:
            first = min(lost, key=lambda state: state.lost_s or 0.0)
            if is_ending(first.pid):
                return self._blame(first, summary="exited with an unknown exit code")
            return self._blame(first, summary="closed its connection to the launcher but is still running")
        reports = [(state, state.report) for state in states if state.report is not None]
        if reports and not agent_lost:
            first, report = min(reports, key=lambda pair: (pair[1]["complaint"], pair[1]["time_s"]))
            returned = [state.rank for state in states if state.done]
            hint = f"\n(Ranks that had returned before: {returned}.)\n" if returned else ""
            return self._blame(
                first,
                summary=report["summary"],
                detail=report["traceback"] + hint,
                phase=report["phase"],
                pickled_error=first.pickled_error,
                is_transient=report["retry"],
                is_attributed=not report["complaint"],
            )
        if spawner_exit_code is not None and not self._states:
            return self.explain_start(f"the process that starts its ranks {describe_exit(spawner_exit_code)[0]}")
        if exit_of_agent is not None:
            return self.explain_start(f"the process that starts its ranks {self._describe_exit(*exit_of_agent)[0]}")
        return self.explain_start("the processes that start its ranks have ended")

    def explain_hang(self, hang: Hang) -> Failure:
        """Have every rank write its stack to its file, and show that of the one to blame."""
        running = [state for state in self._states.values() if not state.done]
        pids = [state.pid for state in running if state.exit_code is None]
        signal_main_threads(pids, STACK_SIGNAL)  # any other thread could write the stacks after that one has moved on
        send_signal(pids, signal.SIGCONT)  # a stopped process handles the other first when it continues
        deadline_s = time.monotonic() + _STACK_WAIT_S
        while time.monotonic() < deadline_s and not all(map(self._read_stack, running)):
            time.sleep(0.05)
        time.sleep(0.1)  # the last lines of the last stack
        for state in running:
            if state.rank in self._logs:
                for line in self._read_stack(state).encode().splitlines():
                    self._logs[state.rank].write(line)
        culprit = hang.culprits[0]
        stack = self._read_stack(culprit) or "(no Python stack available)"
        others = f" (so do ranks {[state.rank for state in hang.culprits[1:]]})" if hang.culprits[1:] else ""
        summary = f"hangs: {hang.reason}{others} (last known phase: {culprit.phase})"
        is_attributed = len(hang.culprits) == 1 and not hang.all_wait
        return self._blame(
            culprit, summary=summary, phase="", detail=f"Its Python stack:\n{stack}", is_attributed=is_attributed
        )

    def explain_start(self, summary: str) -> Failure:
        """Blame the processes that start the ranks, with the end of their log."""
        try:
            tail = "\n".join(self.host_log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
        except OSError as error:  # the run directory was deleted
            tail = f"({self.host_log} cannot be read: {error.strerror})"
        _, traceback, rest = tail.rpartition("Traceback (most recent call last):\n")
        raised = [line for line in rest.splitlines() if line and not line.startswith(" ")]  # its stack is indented
        if traceback and raised:
            summary += f": {first_line_of(RuntimeError(raised[0]))}"
        files = (self.host_log,) if self._host_log_kept else ()
        return Failure(summary=summary, detail=tail, host=socket.gethostname(), files=files)

    def _explain_exit(self, state: RankState) -> Failure:
        assert state.exit_code is not None
        how, signum, exit_code = self._describe_exit(state.pid, state.exit_code)
        how += f" (last known phase: {state.phase})"
        stack = self._read_stack(state)
        return self._blame(state, summary=how, phase="", detail=stack, signal=signum, exit_code=exit_code)

    def _describe_exit(self, pid: int, exit_code: int) -> tuple[str, int | None, int | None]:
        """Return what `describe_exit` does, with what the kernel knows about a SIGKILL."""
        how, signum, status = describe_exit(exit_code)
        if signum == signal.SIGKILL and (reason := self._oom.explain(pid)):
            how += f", {reason}"
        return how, signum, status

    def _blame(self, state: RankState, **fields: Any) -> Failure:
        log = self._logs.get(state.rank)
        defaults = {"phase": state.phase, "files": () if log is None else (log.path,)}
        return Failure(rank=state.rank, host=state.host, **{**defaults, **fields})

    def _read_stack(self, state: RankState) -> str:
        try:
            text = stack_file(self._scratch, state.rank).read_text(errors="replace")
            return text.partition("\nExtension modules:")[0]
        except OSError:
            return ""
