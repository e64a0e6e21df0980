"""Supervises the processes of one job on this host: takes in their messages, decides when it is over, and ends them."""

import contextlib
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from mjtrain.launcher.failure import Failure, RunResult, send_result
from mjtrain.launcher.ipc.messages import HostConnection
from mjtrain.launcher.ipc.signals import EventLoop
from mjtrain.launcher.job.diagnosis import Diagnosis, RankState, find_hang
from mjtrain.launcher.job.outputs import Console, RemoteConsole, Sink
from mjtrain.launcher.job.process_tree import ProcessTree
from mjtrain.launcher.job.rank_server import RankServer
from mjtrain.launcher.planning.plan import LaunchPlan
from mjtrain.runtime.processes import is_ending, read_exit_code

SETTLE_S = 0.5
"""Time between the first sign of a failure and the result: reports of other ranks, and an exit, may arrive later."""

EXIT_PATIENCE_S = 30.0
"""The same where the process of a rank is ending and its exit code has not arrived, for a kernel that takes long."""

INTERRUPT_GRACE_S = 5.0
"""Time that an interrupted function has for its clean-up."""

LEAVE_GRACE_S = 5.0
"""Time that processes have to end by themselves after success."""

_SPAWNER = "mjtrain.launcher.job.spawner"

_END = Failure(summary="the job was ended", is_transient=False)


class Supervisor:
    """One job on this host. Everything happens in the caller's thread, in `run`."""

    def __init__(
        self,
        plan: LaunchPlan,
        scratch: Path,
        log_dir: Path | None,
        *,
        host: str = "localhost",
        connection: HostConnection | None = None,
    ) -> None:
        """Prepare to supervise.

        Args:
            connection: To the coordinator of the whole job, where there are ranks on other hosts; both of them can
                decide that the job is over.
        """
        self._plan = plan
        self._host = host
        self._connection = connection
        self._scratch = scratch
        self._console: Sink = Console() if connection is None else RemoteConsole(connection)
        self._loop = EventLoop(self._on_signal)
        self._ranks = RankServer(
            plan, scratch, log_dir, self._console, host=host, is_here=connection is None, loop=self._loop, listener=self
        )
        self._states = self._ranks.states
        self._diagnosis = Diagnosis(scratch, log_dir, self._states, self._ranks.logs, host)
        self._agent_pids: list[int] = []
        self._agent_lost = False
        self._exit_of_agent: tuple[int, int] | None = None
        self._exits: dict[int, tuple[int, float]] = {}
        """Exit codes of ranks, by process id, and when they arrived."""
        self._injected: list[str] = []
        """Faults that were injected into the ranks, where this is the only host."""
        self._value: bytes | None = None
        self._stop_signal: int | None = None
        self._rejoin_requested = False
        """Whether hosts wait to be taken in after the next checkpoint."""
        self._paused = False
        """Whether the function has ended for that."""
        self._signalled = False
        """Whether this process has got a signal; a rank may have passed on its own before."""
        self._stop_announced = False
        self._deadline_s: float | None = None
        """When a stop that was asked for is enforced."""
        self._interrupting = False
        """Whether the function does not ask for stops, and so is interrupted."""
        self._end_from_coordinator: Failure | None = None
        self._suspect_s: float | None = None
        """When the first sign of a failure was seen."""
        self._complete_s: float | None = None
        """When the last rank began."""
        self._done_s: float | None = None
        """When the last rank was done."""
        self._result: RunResult | None = None

    def run(self, environ: dict[str, str]) -> RunResult:
        """Run the job in the scratch folder; return how it ended. No process is left except those in `left`."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._diagnosis.close)
            stack.enter_context(self._loop)
            stack.enter_context(self._ranks.listen())
            log = stack.enter_context(self._diagnosis.host_log.open("ab", buffering=0))
            self._processes = ProcessTree(self._scratch, environ, log, [_SPAWNER, str(self._scratch)])
            self._loop.watch(self._processes.control, self._processes.read)
            if self._connection is not None:
                self._loop.watch(self._connection, self._hear_coordinator)
            try:
                self._begin_s = time.monotonic()
                if self._connection is not None:
                    self._connection.heard_s = self._begin_s
                    self._connection.timeout_s = self._plan.host_timeout_s
                while self._result is None:
                    self._turn()
                if self._connection is not None:
                    send_result(self._connection, self._result)
            finally:
                left = self._end()
        ran_s = time.monotonic() - self._complete_s if self._complete_s else 0.0
        return replace(self._result, ran_s=ran_s, left=tuple(left))

    def _turn(self) -> None:
        """Take in everything that has arrived, then look at the clock."""
        paused_s = self._loop.turn()
        now_s = time.monotonic()
        if paused_s:  # this process was stopped, and could not hear the ranks
            for state in self._states.values():
                state.heard_s += paused_s
                state.progressed_s += paused_s
            if self._connection is not None:
                self._connection.heard_s = now_s
        if self._connection is not None:
            self._connection.beat()
        self._ranks.follow_size()
        self._check_exits(now_s)
        self._result = self._judge(now_s)

    # What arrives

    def _hear_coordinator(self) -> None:
        assert self._connection is not None
        for message, _ in self._connection.receive():
            if message["kind"] == "stop" and self._stop_signal is None:
                self._stop(message["signum"])
            elif message["kind"] == "rejoin":
                self._rejoin_requested = True
                self._tell_ranks([state for state in self._states.values() if not state.done], "rejoin")
            elif message["kind"] == "end":
                self._end_from_coordinator = Failure.from_plain(message["failure"]) if message["failure"] else _END
        if self._connection.lost:
            self._loop.unwatch(self._connection)

    def on_hello(self, state: RankState) -> None:
        """A rank has begun."""
        self._complete_s = state.heard_s
        state.exit_code, _ = self._exits.get(state.pid, (None, 0.0))
        if self._connection is not None and len(self._states) == len(self._plan.ranks):
            self._connection.send("begun")
        if self._stop_signal is not None:
            self._tell_ranks([state], "stop", signum=self._stop_signal)
        if self._rejoin_requested:
            self._tell_ranks([state], "rejoin")

    def on_message(self, state: RankState | None, message: dict[str, Any], body: bytes) -> None:
        """A message of a rank or of the torchrunx agent has arrived."""
        kind = message["kind"]
        if kind == "agent":
            self._agent_pids = [message["pid"], *message["rank_pids"]]
        elif kind == "exit":
            self._exits[message["pid"]] = message["exit_code"], time.monotonic()
            for ended in (rank for rank in self._states.values() if rank.pid == message["pid"]):
                ended.exit_code = message["exit_code"]  # what it has sent before may be read later than this
        if state is None:
            return
        state.heard_s = time.monotonic()
        if kind == "beat":
            state.take_beat(message, state.heard_s)
        elif kind == "signalled" and self._stop_signal is None:
            self._request_stop(message["signum"])
        elif kind in ("stopping", "interrupting"):
            self._on_answer(kind)
        elif kind in ("done", "interrupted"):
            state.done, state.interrupted = True, kind == "interrupted"
            if state.rank == self._plan.ranks[0].rank and kind == "done":
                self._value, self._paused = body, message["paused"]
        elif kind == "injected":
            state.phase = message["phase"]
            self._on_injected(state, message["fault"])
        elif kind == "failed":
            state.report, state.pickled_error = message, body
            self._suspect()

    def _on_injected(self, state: RankState, fault: str) -> None:
        if self._connection is None:
            self._injected.append(fault)
        else:  # the cause that it marks may be the complaint of another host
            self._connection.send("injected", fault=fault)
        line = f"[rank {state.rank}] injecting fault {fault}\n".encode()
        self._console.write("stderr", line)
        if state.rank in self._ranks.logs:
            self._ranks.logs[state.rank].write(line.rstrip())

    def _check_exits(self, now_s: float) -> None:
        """Suspect ranks that ended without a message, or left their connection to a separate process."""
        states = {state.pid: state for state in self._states.values()}
        for pid, (_, exited_s) in self._exits.items():
            state = states.get(pid)
            if now_s - exited_s <= SETTLE_S or (state is not None and (state.done or state.report is not None)):
                continue
            if state is not None:
                state.lost_s = state.lost_s or exited_s
            if self._suspect_s is None:
                self._suspect()

    def on_hang_up(self, state: RankState | None) -> None:
        """A rank or the torchrunx agent has closed its connection."""
        if state is None:
            self._agent_lost = True
            if not self._all_ranks_done():
                self._suspect()
        elif not state.done and state.report is None:
            state.lost_s = state.lost_s or time.monotonic()
            self._suspect()

    def _suspect(self) -> None:
        self._suspect_s = self._suspect_s or time.monotonic()
        self._ranks.mute()

    # What follows from it

    def _on_signal(self, signum: int) -> None:
        """Ask for a stop with the first signal to this process, and leave with the second."""
        # Schedulers signal all processes of a job at once, so what a rank passes on does not count as the first.
        if self._connection is None and self._signalled:
            self._deadline_s = 0.0
        elif self._stop_signal is None:
            self._request_stop(signum)
        self._signalled = True

    def _request_stop(self, signum: int) -> None:
        if self._connection is not None:
            self._connection.send("signalled", signum=signum)  # a request to the whole job
        else:
            self._stop(signum)

    def _stop(self, signum: int) -> None:
        self._stop_signal = signum
        running = [state for state in self._states.values() if not state.done]
        self._deadline_s = time.monotonic() + self._plan.stop_grace_s if running else 0.0
        self._tell_ranks(running, "stop", signum=signum)

    def _tell_ranks(self, states: list[RankState], kind: str, **fields: Any) -> None:
        for state in states:
            with contextlib.suppress(OSError):
                state.sender.send(kind, **fields)

    def _on_answer(self, kind: str) -> None:
        """Take in what a rank does about the request: its function will return soon, or is interrupted."""
        signum = self._stop_signal
        if kind == "stopping" and signum is not None and not self._stop_announced:
            self._stop_announced = True
            if self._plan.leads:  # only the host with rank 0 announces it
                how = f"within {self._plan.stop_grace_s:g} s; again to leave at once"
                line = f"{signal.Signals(signum).name}: finishing this iteration, then saving ({how})\n"
                self._console.write("stderr", line.encode())
        elif kind == "interrupting" and self._deadline_s is not None:
            self._interrupting = True
            self._deadline_s = min(self._deadline_s, time.monotonic() + INTERRUPT_GRACE_S)

    def _judge(self, now_s: float) -> RunResult | None:
        stop, connection = self._stop_signal, self._connection
        if self._end_from_coordinator is not None:
            return RunResult(failure=self._end_from_coordinator)
        silence = None if connection is None else connection.explain_silence()
        if connection is not None and (connection.lost or silence is not None):
            how = silence or "it closed the connection"
            return RunResult(failure=Failure(summary=f"the launcher of this job is lost: {how}", host=self._host))
        if self._deadline_s is not None and now_s >= self._deadline_s:
            saves = self._deadline_s > 0 and not self._interrupting and self._value is None
            return RunResult(stop_signal=stop, not_saved_s=self._plan.stop_grace_s if saves else None)
        if self._all_ranks_done():
            self._done_s = self._done_s or now_s
            # Spawner and agent have nothing left to do by then; ranks that were interrupted do not end by themselves.
            interrupted = any(state.interrupted for state in self._states.values())
            if interrupted or self._all_ranks_ended() or now_s - self._done_s > LEAVE_GRACE_S:
                return RunResult(value=self._value, stop_signal=stop, paused=self._paused)
            return None
        failure = self._find_failure(now_s)
        if failure is None:
            return None
        return RunResult(failure=failure.after_faults(self._injected), stop_signal=stop)

    def _find_failure(self, now_s: float) -> Failure | None:
        states, spawner_exit_code = list(self._states.values()), self._processes.first_exit_code
        if self._agent_lost and self._exit_of_agent is None and self._agent_pids:
            exit_code = read_exit_code(self._agent_pids[0])  # before its parent waits for it
            self._exit_of_agent = None if exit_code is None else (self._agent_pids[0], exit_code)
        if self._suspect_s is not None and now_s - self._suspect_s > self._settle_s():
            return self._diagnosis.explain(spawner_exit_code, self._agent_lost, self._exit_of_agent)
        if self._processes.lost:
            return self._diagnosis.explain_start("the reaper process ended unexpectedly")
        if self._suspect_s is None and spawner_exit_code is not None:
            self._suspect()
        elif hang := find_hang(states, self._plan.heartbeat_timeout_s, now_s, alone=self._connection is None):
            return self._diagnosis.explain_hang(hang)
        elif len(states) < len(self._plan.ranks) and now_s - self._begin_s > self._plan.start_timeout_s:
            return self._diagnosis.explain_start(f"its ranks did not start within {self._plan.start_timeout_s:g} s")
        return None

    def _settle_s(self) -> float:
        """How long to wait for the cause: a rank that is ending without a report is it, and its exit code follows."""
        without_report = [state for state in self._states.values() if not state.done and state.report is None]
        ending = any(state.exit_code is None and is_ending(state.pid) for state in without_report)
        return EXIT_PATIENCE_S if ending and not self._agent_lost else SETTLE_S

    def _all_ranks_done(self) -> bool:
        return len(self._states) == len(self._plan.ranks) and all(state.done for state in self._states.values())

    def _all_ranks_ended(self) -> bool:
        return all(state.exit_code is not None for state in self._states.values()) or self._agent_lost

    # The end

    def _end(self) -> list[int]:
        """End every process, take in the last of their output, and close everything; return what cannot be ended."""
        finished = self._result is not None and self._result.failure is None and self._result.value is not None
        if finished and not self._all_ranks_ended():  # they had their time
            now, wait_s = [], 0.0
        elif finished:
            now, wait_s = self._agent_pids[:1], LEAVE_GRACE_S
        else:
            # Spawner, agent and ranks have nothing to save by now; what the ranks have started gets SIGTERM first.
            now, wait_s = [*self._agent_pids, *(state.pid for state in self._states.values())], 0.0
            now = [pid for pid in now if pid not in self._exits]
        left = self._processes.end(now, wait_s=wait_s)
        if not finished and sys.stdout is not None and sys.stdout.isatty():
            self._console.write("stdout", b"\x1b[?25h")  # a live status that was cut short had hidden the cursor
        self._ranks.close(LEAVE_GRACE_S)
        return left
