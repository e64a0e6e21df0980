"""Watches over the processes of one job from the first to the last: hears them, notices what goes wrong, ends them."""

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mjtrain.launcher.failure import Failure, RunResult, send_result
from mjtrain.launcher.ipc.host_connection import SILENCE_S, HostConnection
from mjtrain.launcher.ipc.messages import MessageReader, Sender, listen, send_descriptors
from mjtrain.launcher.ipc.signals import StopSignals, wakeup_pipe
from mjtrain.launcher.job.diagnosis import Diagnosis
from mjtrain.launcher.job.health import RankState, find_silence
from mjtrain.launcher.job.outputs import Console, LogFile, RankOutput, RemoteConsole, Sink
from mjtrain.launcher.job.process_tree import ProcessTree
from mjtrain.launcher.planning.plan import LaunchPlan

SETTLE_S = 0.5
"""Time between the first sign of a failure and the verdict: a dead process may be seen after its peers' complaints."""

EXIT_PATIENCE_S = 6.0
"""The same where a rank has hung up and its end is not known yet: a process with much memory takes its time to go."""

INTERRUPT_GRACE_S = 5.0
"""Time that an interrupted function has for its clean-up."""

LEAVE_GRACE_S = 5.0
"""Time that processes have to end by themselves after success."""

_END = Failure(summary="the job was ended", may_pass=False)

_TURN_S = 0.2


class Supervisor:
    """One job on this host. Everything happens in the caller's thread, in `run`."""

    def __init__(
        self,
        plan: LaunchPlan,
        scratch: Path,
        log_dir: Path | None,
        *,
        host: str = "localhost",
        link: HostConnection | None = None,
    ) -> None:
        """Prepare to watch.

        Args:
            plan: The ranks of this host.
            scratch: The job's folder.
            log_dir: Where log files go; None writes none.
            host: What this host is called in their names.
            link: To the launcher of the whole job, where there are ranks on other hosts; it decides together with this.
        """
        self._plan = plan
        self._host = host
        self._link = link
        self._end_from_afar: Failure | None = None
        self._scratch = scratch
        self._log_dir = log_dir
        self._console: Sink = Console() if link is None else RemoteConsole(link)
        self._selector = selectors.DefaultSelector()
        self._members: dict[int, RankState] = {}
        self._outputs: dict[int, RankOutput] = {}
        self._logs: dict[int, LogFile] = {}
        self._agent_pids: list[int] = []
        self._agent_lost = False
        self._value: bytes | None = None
        self._stop_signal: int | None = None
        self._stop_announced = False
        self._deadline_s: float | None = None
        """When a stop that was asked for is enforced."""
        self._suspect_s: float | None = None
        """When the first sign of a failure was seen."""
        self._complete_s: float | None = None
        """When the last rank began."""
        self._done_s: float | None = None
        """When the last rank was done."""
        self._verdict: RunResult | None = None
        self._diagnosis = Diagnosis(scratch, log_dir, self._members, self._logs, host)

    def run(self, environ: dict[str, str]) -> RunResult:
        """Start the job that lies in the scratch folder, and see it through.

        Args:
            environ: Environment of all its processes.

        Returns:
            How it ended; no process of it is left.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._diagnosis.close)
            wakeup = stack.enter_context(wakeup_pipe())
            stack.enter_context(StopSignals(self._on_signal))
            server = stack.enter_context(listen(self._scratch))
            log = stack.enter_context(self._diagnosis.host_log.open("ab", buffering=0))
            self._custody = ProcessTree(self._scratch, environ, log)
            self._watch(wakeup, lambda: os.read(wakeup, 4096))
            self._watch(server, lambda: self._accept(server))
            self._watch(self._custody.control, self._custody.read)
            if self._link is not None:
                self._watch(self._link, self._hear_launcher)
            try:
                self._begin_s = self._turn_s = time.monotonic()
                if self._link is not None:
                    self._link.heard_s = self._begin_s
                while self._verdict is None:
                    self._turn()
                if self._link is not None:
                    send_result(self._link, self._verdict)
            finally:
                self._end()
        return replace(self._verdict, ran_s=time.monotonic() - self._complete_s) if self._complete_s else self._verdict

    def _watch(self, file: Any, callback: Callable[[], Any]) -> None:
        self._selector.register(file, selectors.EVENT_READ, callback)

    def _turn(self) -> None:
        """Take in everything that has come, then look at the clock."""
        for key, _ in self._selector.select(_TURN_S):
            if key.fd in self._selector.get_map():
                key.data()
        now_s = time.monotonic()
        if now_s - self._turn_s > 10 * _TURN_S:  # this process itself was stopped: the ranks' time did not run
            for member in self._members.values():
                member.heard_s += now_s - self._turn_s
                member.progressed_s += now_s - self._turn_s
            if self._link is not None:
                self._link.heard_s = now_s
        self._turn_s = now_s
        if self._link is not None:
            self._link.beat()
        for output in self._outputs.values():
            output.follow_size()
        self._verdict = self._judge(now_s)

    # What comes in

    def _hear_launcher(self) -> None:
        assert self._link is not None
        for message, _ in self._link.receive():
            if message["kind"] == "stop" and self._stop_signal is None:
                self._stop(message["signum"])
            elif message["kind"] == "end":
                self._end_from_afar = Failure.from_plain(message["failure"]) if message["failure"] else _END
        if self._link.lost:
            self._selector.unregister(self._link)

    def _accept(self, server: socket.socket) -> None:
        connection, _ = server.accept()
        connection.setblocking(True)
        reader, member = MessageReader(), None

        def receive() -> None:
            nonlocal member
            try:
                data = connection.recv(65536)
            except OSError:
                data = b""
            if not data:
                self._selector.unregister(connection)
                connection.close()
                self._on_hang_up(member)
                return
            for message, body in reader.feed(data):
                if message["kind"] == "hello":
                    member = self._welcome(connection, message)
                self._on_message(member, message, body)

        self._watch(connection, receive)

    def _welcome(self, connection: socket.socket, message: dict[str, Any]) -> RankState:
        """Give a rank its output streams."""
        rank, now_s = message["rank"], time.monotonic()
        log = None
        if self._log_dir is not None:
            local_rank = rank - self._plan.ranks[0].rank
            log = self._logs[rank] = LogFile(self._log_dir / f"{self._host}[{local_rank}].log", self._console)
        output = self._outputs[rank] = RankOutput(rank, self._console, log, is_here=self._link is None)
        output.follow_size()
        with contextlib.suppress(OSError):  # it is gone already, and its hang-up will be noticed
            send_descriptors(connection, output.write_ends)
        output.close_write_ends()
        for descriptor in output.streams:
            self._watch(descriptor, partial(self._pump, output, descriptor))
        member = RankState(
            rank=rank,
            pid=message["pid"],
            host=message["host"],
            speaker=Sender(connection),
            heard_s=now_s,
            progressed_s=now_s,
        )
        self._members[rank] = member
        self._complete_s = now_s
        if self._link is not None and len(self._members) == len(self._plan.ranks):
            self._link.send("begun")
        if self._stop_signal is not None:
            self._ask_to_stop([member], self._stop_signal)
        return member

    def _on_message(self, member: RankState | None, message: dict[str, Any], body: bytes) -> None:
        kind = message["kind"]
        if kind == "agent":
            self._agent_pids = [message["pid"], *message["rank_pids"]]
        elif kind == "exit":
            self._on_exit(message["pid"], message["exit_code"])
        if member is None:
            return
        member.heard_s = time.monotonic()
        if kind == "beat":
            member.take_beat(message, member.heard_s)
        elif kind == "signalled" and self._stop_signal is None:
            self._on_signal(message["signum"])
        elif kind in ("stopping", "interrupting"):
            self._on_answer(kind)
        elif kind in ("done", "interrupted"):
            member.done = True
            if member.rank == self._plan.ranks[0].rank and kind == "done":
                self._value = body
        elif kind == "failed":
            member.report, member.pickled_error = message, body
            self._suspect()

    def _on_exit(self, pid: int, exit_code: int) -> None:
        for member in self._members.values():
            if member.pid == pid:
                member.exit_code = exit_code
                if not member.done and member.report is None:
                    self._suspect()
                    member.lost_s = member.lost_s or time.monotonic()
                return
        if exit_code != 0 or pid in self._agent_pids:  # a rank that ended before its first word
            self._suspect()

    def _on_hang_up(self, member: RankState | None) -> None:
        if member is None:
            self._agent_lost = True
            if not all(member.done for member in self._members.values()):
                self._suspect()
        elif not member.done and member.report is None:
            member.lost_s = member.lost_s or time.monotonic()
            self._suspect()

    def _suspect(self) -> None:
        self._suspect_s = self._suspect_s or time.monotonic()
        for output in self._outputs.values():
            output.mute()

    def _pump(self, output: RankOutput, descriptor: int) -> None:
        """Read what a rank has written, if the console keeps up; else the rank waits, as it would without us."""
        if self._console.congested:
            time.sleep(0.02)
        elif not output.pump(descriptor):
            self._selector.unregister(descriptor)
            os.close(descriptor)

    # What follows from it

    def _on_signal(self, signum: int) -> None:
        """Ask for a stop with the first signal; leave with the second."""
        if self._link is not None:
            self._link.send("signalled", signum=signum)  # a request to the whole job
        elif self._stop_signal is not None:
            self._deadline_s = 0.0
        else:
            self._stop(signum)

    def _stop(self, signum: int) -> None:
        self._stop_signal = signum
        members = [member for member in self._members.values() if not member.done]
        self._deadline_s = time.monotonic() + self._plan.stop_grace_s if members else 0.0
        self._ask_to_stop(members, signum)

    def _ask_to_stop(self, members: list[RankState], signum: int) -> None:
        for member in members:
            with contextlib.suppress(OSError):
                member.speaker.send("stop", signum=signum)

    def _on_answer(self, kind: str) -> None:
        """Take in what a rank does about the request: its function comes to an end, or is interrupted."""
        signum = self._stop_signal
        if kind == "stopping" and signum is not None and not self._stop_announced:
            self._stop_announced = True
            if not self._plan.leads:
                return  # the host with rank 0 says it
            self._say(
                f"{signal.Signals(signum).name}: finishing this iteration, then saving (within "
                f"{self._plan.stop_grace_s:g} s; again to leave at once)"
            )
        elif kind == "interrupting" and self._deadline_s is not None:
            self._deadline_s = min(self._deadline_s, time.monotonic() + INTERRUPT_GRACE_S)

    def _judge(self, now_s: float) -> RunResult | None:
        """Decide whether the job is over."""
        stop = self._stop_signal
        if self._end_from_afar is not None:
            return RunResult(failure=self._end_from_afar)
        if self._link is not None and (self._link.lost or self._link.silent):
            how = f"nothing came from it for {SILENCE_S:g} s" if self._link.silent else "it has hung up"
            return RunResult(failure=Failure(summary=f"the launcher of this job is lost: {how}", host=self._host))
        if self._deadline_s is not None and now_s >= self._deadline_s:
            return RunResult(stop_signal=stop)
        members = list(self._members.values())
        if len(members) == len(self._plan.ranks) and all(member.done for member in members):
            self._done_s = self._done_s or now_s
            if self._custody.starter_exit_code is not None or now_s - self._done_s > LEAVE_GRACE_S:
                return RunResult(value=self._value, stop_signal=stop)
            return None
        failure = None
        if self._suspect_s is not None and now_s - self._suspect_s > self._settle_s():
            failure = self._diagnosis.explain(self._custody.starter_exit_code, self._agent_lost)
        elif self._custody.lost:
            failure = Failure(summary="the keeper of its processes has ended unexpectedly")
        elif self._suspect_s is None and self._custody.starter_exit_code is not None:
            self._suspect()
        elif silence := find_silence(members, self._plan.heartbeat_timeout_s, now_s, alone=self._link is None):
            failure = self._diagnosis.explain_silence(silence)
        elif len(members) < len(self._plan.ranks) and now_s - self._begin_s > self._plan.start_timeout_s:
            failure = self._diagnosis.explain_start(f"its ranks did not start within {self._plan.start_timeout_s:g} s")
        return None if failure is None else RunResult(failure=failure, stop_signal=stop)

    def _settle_s(self) -> float:
        """How long to wait for the cause: a rank that hung up without a word is about to end, and how tells most."""
        ending = any(
            member.lost_s and member.exit_code is None and not member.done for member in self._members.values()
        )
        return EXIT_PATIENCE_S if ending and not self._agent_lost else SETTLE_S

    def _say(self, line: str) -> None:
        self._console.write("stderr", line.encode() + b"\n")

    # The end

    def _end(self) -> None:
        """End every process, take in the last of their output, and give everything back."""
        good = self._verdict is not None and self._verdict.failure is None and self._verdict.value is not None
        now = [] if good else [*self._agent_pids, *(member.pid for member in self._members.values())]
        # Starter, agent and ranks have nothing to save by now; what the ranks have started gets SIGTERM first.
        self._custody.end(now, wait_s=LEAVE_GRACE_S if good else 0.0)
        deadline_s = time.monotonic() + LEAVE_GRACE_S
        for output in self._outputs.values():
            while output.streams and time.monotonic() < deadline_s:
                for descriptor in list(output.streams):
                    self._pump(output, descriptor)
            for descriptor in output.streams:
                os.close(descriptor)
        if not good and sys.stdout is not None and sys.stdout.isatty():
            self._console.write("stdout", b"\x1b[?25h")  # a live status that was cut short had hidden the cursor
        self._console.close(LEAVE_GRACE_S)
        for log in self._logs.values():
            log.close()
        self._selector.close()
