"""The launcher of a job on several hosts: hears what is in charge of each, decides when the job is over and why."""

import contextlib
import os
import selectors
import time
from collections.abc import Callable
from typing import Any

from mjtrain.launcher.failure import Failure, RunResult, read_result
from mjtrain.launcher.ipc.host_connection import SILENCE_S
from mjtrain.launcher.ipc.signals import StopSignals, wakeup_pipe
from mjtrain.launcher.job.outputs import Console
from mjtrain.launcher.multinode.transport import HostHandle

SETTLE_S = 1.0
"""Time between the first failure and the verdict: of several hosts the one that lost a process has the cause."""

_GONE_S = 10.0
"""Time that hosts have to end what they run."""

_TURN_S = 0.2
_CONSOLE_S = 5.0


class Coordinator:
    """One job on several hosts. Everything happens in the caller's thread, in `run`."""

    def __init__(self, lines: list[HostHandle], *, start_timeout_s: float, stop_grace_s: float) -> None:
        """Prepare to watch.

        Args:
            lines: To what is in charge of each host; the first has rank 0.
            start_timeout_s: Time until all ranks have begun.
            stop_grace_s: Time that a stop which was asked for may take.
        """
        self._lines = lines
        self._start_timeout_s = start_timeout_s
        self._stop_grace_s = stop_grace_s
        self._console = Console()
        self._verdicts: dict[int, RunResult] = {}
        self._gone: set[int] = set()
        self._begun: set[int] = set()
        self._begun_s: float | None = None
        self._port: int | None = None
        self._stop_signal: int | None = None
        self._deadline_s: float | None = None
        self._failed_s: float | None = None
        self._failures: list[Failure] = []

    def run(self, make_start: Callable[[int, int], tuple[dict[str, Any], bytes]]) -> RunResult:
        """Start the job on every host and see it through.

        Args:
            make_start: Takes a host's index and the port where ranks meet; returns what to send there.

        Returns:
            How it ended; on every host that can be reached, no process of it is left.
        """
        with contextlib.ExitStack() as stack:
            wakeup = stack.enter_context(wakeup_pipe())
            stack.enter_context(StopSignals(self._on_signal))
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._selector.register(wakeup, selectors.EVENT_READ, lambda: os.read(wakeup, 4096))
            for index, line in enumerate(self._lines):
                line.link.heard_s = time.monotonic()
                self._selector.register(line.link, selectors.EVENT_READ, self._hearer(index))
            self._lines[0].link.send("port")
            begin_s = time.monotonic()
            started, verdict = False, None
            while verdict is None:
                self._turn()
                if self._port is not None and not started:
                    started = True
                    for index, line in enumerate(self._lines):
                        fields, body = make_start(index, self._port)
                        line.link.send("start", body, **fields)
                verdict = self._judge(time.monotonic() - begin_s)
            self._end(verdict)
        self._console.close(_CONSOLE_S)
        return verdict

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TURN_S):
            if key.fd in self._selector.get_map():
                key.data()
        for index, line in enumerate(self._lines):
            if index not in self._gone:
                line.link.beat()

    def _hearer(self, index: int) -> Callable[[], None]:
        line = self._lines[index]

        def hear() -> None:
            try:
                for message, body in line.link.receive():
                    self._on_message(index, message, body)
            except (ValueError, KeyError, TypeError):  # from somebody who does not know how to talk to us
                line.link.lost = True
            if line.link.lost:
                self._selector.unregister(line.link)
                if index not in self._gone:
                    self._gone.add(index)
                    self._fail(Failure(summary=line.explain_end(), host=line.host))

        return hear

    def _on_message(self, index: int, message: dict[str, Any], body: bytes) -> None:
        line, kind = self._lines[index], message["kind"]
        if kind == "output":
            if not self._console.congested:  # the files on its host have it all
                self._console.write("stderr" if message["stream"] == "stderr" else "stdout", body)
        elif kind == "port":
            self._port = message["port"]
        elif kind == "begun":
            self._begun.add(index)
            self._begun_s = time.monotonic()
        elif kind == "signalled" and self._stop_signal is None:
            self._on_signal(message["signum"])
        elif kind == "verdict":
            verdict = self._verdicts[index] = read_result(message, body, trusted=line.trusted)
            if verdict.failure is not None:
                self._fail(verdict.failure)
        elif kind == "gone":
            self._gone.add(index)

    def _fail(self, failure: Failure) -> None:
        self._failures.append(failure)
        self._failed_s = self._failed_s or time.monotonic()

    def _on_signal(self, signum: int) -> None:
        """Ask for a stop with the first signal; leave with the second."""
        if self._stop_signal is not None:
            self._deadline_s = 0.0
            return
        self._stop_signal = signum
        self._deadline_s = time.monotonic() + self._stop_grace_s + SETTLE_S
        for line in self._lines:
            line.link.send("stop", signum=signum)

    def _judge(self, ran_s: float) -> RunResult | None:
        """Decide whether the job is over."""
        now_s = time.monotonic()
        if self._deadline_s is not None and now_s >= self._deadline_s:
            return RunResult(stop_signal=self._stop_signal)
        for index, line in enumerate(self._lines):
            if line.link.silent and index not in self._gone:
                self._gone.add(index)
                summary = f"nothing came from this host for {SILENCE_S:g} s: it, or the network in between, is down"
                self._fail(Failure(summary=summary, host=line.host))
        if self._failed_s is not None and now_s - self._failed_s > SETTLE_S:
            steady_s = 0.0 if self._begun_s is None else now_s - self._begun_s
            return RunResult(failure=pick_cause(self._failures), stop_signal=self._stop_signal, ran_s=steady_s)
        if len(self._verdicts) == len(self._lines) and self._failed_s is None:
            return RunResult(value=self._verdicts[0].value, stop_signal=self._stop_signal)
        if len(self._begun) < len(self._lines) and ran_s > self._start_timeout_s:
            late = [line.host for index, line in enumerate(self._lines) if index not in self._begun]
            summary = f"ranks did not start within {self._start_timeout_s:g} s on {', '.join(late)}"
            return RunResult(failure=Failure(summary=summary))
        return None

    def _end(self, verdict: RunResult) -> None:
        """Have every host end what it runs."""
        cause = {} if verdict.failure is None else verdict.failure.to_plain()
        for line in self._lines:
            line.link.send("end", failure=cause)
        deadline_s = time.monotonic() + _GONE_S
        while len(self._gone) < len(self._lines) and time.monotonic() < deadline_s:
            self._turn()
            self._judge(0.0)  # hosts that have fallen silent need not be waited for
        for index, line in enumerate(self._lines):
            if line.link.fileno() in self._selector.get_map():
                self._selector.unregister(line.link)
            if line.process is not None:
                line.close()
            elif index not in self._gone:
                line.link.lost = True  # and if it calls again, it is a new line


def pick_cause(failures: list[Failure]) -> Failure:
    """Choose the cause among what hosts report at about the same time.

    A process that ended without an exception is the cause even where a peer's complaint about it arrived first.
    """
    dead = [failure for failure in failures if failure.signal is not None or failure.exit_code is not None]
    return (dead or failures)[0]
