"""The launcher of a job on several hosts: starts it on each, decides when it is over and why, looks for lost hosts."""

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mjtrain.launcher.base import LaunchRequest
from mjtrain.launcher.failure import Failure, RunResult, read_result
from mjtrain.launcher.ipc.messages import read_field
from mjtrain.launcher.ipc.signals import STOP_SIGNALS, EventLoop
from mjtrain.launcher.job.outputs import Console
from mjtrain.launcher.job.spawner import Job
from mjtrain.launcher.multinode.probe import find_answering, select_environ
from mjtrain.launcher.multinode.transport import HostHandle, open_handles
from mjtrain.launcher.planning.plan import LaunchPlan
from mjtrain.launcher.spawn import run_spawned
from mjtrain.runtime.processes import module_path

SETTLE_S = 1.0
"""Time between the first failure and the result: of several hosts the one that lost a process has the cause."""

_GONE_S = 10.0
"""Time that hosts have to end what they run."""

_CONSOLE_S = 5.0

Look = Callable[[Callable[[], bool]], Sequence[int]]
"""Takes what tells whether the watch is over; looks once, and returns the hosts that came back, by their index in the
plan."""

LOOK_INTERVAL_S = 10.0
"""Time between two looks for hosts that were lost, over ssh or srun."""


class Coordinator:
    """One job on several hosts. Everything happens in the caller's thread, in `run`."""

    def __init__(
        self, plan: LaunchPlan, hosts: list[HostHandle], hosts_wait: Callable[[], bool] = lambda: False
    ) -> None:
        self._plan = plan
        self._hosts = hosts
        self._hosts_wait = hosts_wait
        self._started = False
        self._rejoin_requested = False
        self._loop = EventLoop(self._on_signal)
        self._console = Console()
        self._results: dict[int, RunResult] = {}
        self._gone: set[int] = set()
        self._lost: set[int] = set()
        """Hosts that are gone without having said so."""
        self._begun: set[int] = set()
        self._begun_s: float | None = None
        self._port: int | None = None
        self._stop_signal: int | None = None
        self._signalled = False
        """Whether this process has got a signal; a host may have passed on its own before."""
        self._deadline_s: float | None = None
        self._failed_s: float | None = None
        self._failures: list[Failure] = []
        self._injected: list[str] = []
        """Faults that were injected into ranks."""

    def run(self, make_start: Callable[[int, int], tuple[dict[str, Any], bytes]]) -> RunResult:
        """Start the job on every host, and wait until it is over.

        Args:
            make_start: Takes a host's index and the port where ranks meet; returns what to send there.

        Returns:
            How it ended; on every host that can be reached, no process of it is left.
        """
        with self._loop:
            for index, host in enumerate(self._hosts):
                host.connection.heard_s = time.monotonic()
                host.connection.timeout_s = self._plan.host_timeout_s
                self._loop.watch(host.connection, partial(self._hear, index))
            self._hosts[0].connection.send("port")
            begin_s = time.monotonic()
            result = None
            while result is None:
                self._turn()
                if self._stop_signal is not None and not self._started:
                    result = RunResult(stop_signal=self._stop_signal)
                    self._gone = set(range(len(self._hosts)))  # they run nothing that could say so
                    break
                if self._port is not None and not self._started:
                    self._started = True
                    for index, host in enumerate(self._hosts):
                        fields, body = make_start(index, self._port)
                        host.connection.send("start", body, **fields)
                result = self._judge(time.monotonic() - begin_s)
            self._end(result)
        self._console.close(_CONSOLE_S)
        if result.failure is not None and self._lost:  # a rank that missed them may have been heard of first
            result = replace(result, failure=pick_cause(self._failures), lost_nodes=tuple(sorted(self._lost)))
        return result

    def _turn(self) -> None:
        paused_s = self._loop.turn()
        for index, host in enumerate(self._hosts):
            if paused_s:  # this process was stopped, and could not hear them
                host.connection.heard_s = time.monotonic()
            if index not in self._gone:
                host.connection.beat()
        if self._started and not self._rejoin_requested and self._hosts_wait():
            self._rejoin_requested = True
            for host in self._hosts:
                host.connection.send("rejoin")

    def _hear(self, index: int) -> None:
        host = self._hosts[index]
        try:
            for message, body in host.connection.receive():
                self._on_message(index, message, body)
        except ValueError:  # the other end is not one of ours
            host.connection.lost = True
        if host.connection.lost:
            self._loop.unwatch(host.connection)
            if index not in self._gone:
                self._lose(index, host.explain_end())

    def _on_message(self, index: int, message: dict[str, Any], body: bytes) -> None:
        host, kind = self._hosts[index], message["kind"]
        if kind == "output":
            if not self._console.congested:  # the files on its host have it all
                self._console.write("stderr" if message.get("stream") == "stderr" else "stdout", body)
        elif kind == "port" and index == 0:
            self._port = read_field(message, "port", int)
        elif kind == "begun":
            self._begun.add(index)
            self._begun_s = time.monotonic()
        elif kind == "signalled" and self._stop_signal is None:
            signum = read_field(message, "signum", int)
            if signum not in STOP_SIGNALS:
                raise ValueError(f"no signal that asks for a stop: {signum}")
            self._stop(signum)
        elif kind == "injected":
            self._injected.append(read_field(message, "fault", str))
        elif kind == "result":
            result = self._results[index] = read_result(message, body, trusted=host.trusted)
            if result.failure is not None:
                self._fail(result.failure)
        elif kind == "gone":
            self._gone.add(index)

    def _lose(self, index: int, summary: str) -> None:
        self._gone.add(index)
        self._lost.add(index)
        self._fail(Failure(summary=summary, host=self._hosts[index].host, host_lost=True))

    def _fail(self, failure: Failure) -> None:
        self._failures.append(failure)
        self._failed_s = self._failed_s or time.monotonic()

    def _on_signal(self, signum: int) -> None:
        """Ask for a stop with the first signal to this process; leave with the second."""
        if self._signalled:
            self._deadline_s = 0.0
        elif self._stop_signal is None:
            self._stop(signum)
        self._signalled = True

    def _stop(self, signum: int) -> None:
        self._stop_signal = signum
        self._deadline_s = time.monotonic() + self._plan.stop_grace_s + SETTLE_S
        for host in self._hosts:
            host.connection.send("stop", signum=signum)

    def _judge(self, ran_s: float) -> RunResult | None:
        now_s = time.monotonic()
        if self._deadline_s is not None and now_s >= self._deadline_s:
            late_s = self._plan.stop_grace_s if self._deadline_s > 0 else None
            not_saved_s = self._results[0].not_saved_s if 0 in self._results else late_s
            return RunResult(stop_signal=self._stop_signal, not_saved_s=not_saved_s)
        for index, host in enumerate(self._hosts):
            silence = host.connection.explain_silence("from this host")
            if silence is not None and index not in self._gone:
                self._lose(index, silence)
        if self._failed_s is not None and now_s - self._failed_s > SETTLE_S:
            steady_s = 0.0 if self._begun_s is None else now_s - self._begun_s
            cause = pick_cause(self._failures).after_faults(self._injected)
            return RunResult(failure=cause, stop_signal=self._stop_signal, ran_s=steady_s)
        if len(self._results) == len(self._hosts) and self._failed_s is None:
            first = self._results[0]
            return RunResult(
                value=first.value, stop_signal=self._stop_signal, not_saved_s=first.not_saved_s, paused=first.paused
            )
        if len(self._begun) < len(self._hosts) and ran_s > self._plan.start_timeout_s:
            late = [host.host for index, host in enumerate(self._hosts) if index not in self._begun]
            summary = f"ranks did not start within {self._plan.start_timeout_s:g} s on {', '.join(late)}"
            return RunResult(failure=Failure(summary=summary))
        return None

    def _end(self, result: RunResult) -> None:
        cause = {} if result.failure is None else result.failure.to_plain()
        for host in self._hosts:
            host.connection.send("end", failure=cause)
        deadline_s = time.monotonic() + _GONE_S
        while len(self._gone) < len(self._hosts) and time.monotonic() < deadline_s:
            self._turn()
            self._judge(0.0)  # hosts that have become unresponsive need not be waited for
        for index, host in enumerate(self._hosts):
            self._loop.unwatch(host.connection)
            if host.process is not None:
                host.close()
            elif index not in self._gone or index in self._lost:
                host.connection.lost = True  # if it connects again, that is a new connection


def pick_cause(failures: list[Failure]) -> Failure:
    """Choose the cause among what hosts report at about the same time.

    A process that ended without an exception, or else a host that is lost, is the cause even where a peer's complaint
    about it arrived first. So is an exception that is not about other ranks, or a hang of one of several.
    """
    dead = [failure for failure in failures if failure.signal is not None or failure.exit_code is not None]
    lost = [failure for failure in failures if failure.host_lost]
    attributed = [failure for failure in failures if failure.is_attributed]
    return (dead or lost or attributed or failures)[0]


def run_on_hosts(request: LaunchRequest) -> Any:
    """Run a job on the hosts of its plan; returns and raises as `run_spawned` does."""
    plan = request.plan

    def run_once(job: Job, log_dir: Path | None, lost: Sequence[int]) -> RunResult:
        names = [host.name for host in job.plan.hosts]
        handles = open_handles(names, ssh_config_file=plan.ssh_config_file, transport=plan.transport)
        return run_and_watch(job, log_dir, handles, lost, partial(find_returned, lost), LOOK_INTERVAL_S)

    def find_returned(lost: Sequence[int], is_over: Callable[[], bool] = lambda: False) -> list[int]:
        answering = find_answering([plan.hosts[index].name for index in lost], plan, is_over)
        return [index for index in lost if plan.hosts[index].name in answering]

    return run_spawned(request, run_once, find_returned)


def run_and_watch(
    job: Job, log_dir: Path | None, handles: list[HostHandle], lost: Sequence[int], look: Look, interval_s: float
) -> RunResult:
    """Start a job on every host, and return when no process of it is left there.

    With --rejoin-at-save look meanwhile for the hosts that were lost.
    """
    plan = job.plan
    assert plan.master is not None
    address = plan.master[0]
    folder = None if log_dir is None else str(log_dir)
    environ = {**select_environ(os.environ, plan.copy_env), "PYTHONPATH": module_path()}

    def make_start(index: int, port: int) -> tuple[dict[str, Any], bytes]:
        if not handles[index].trusted:  # it has the function itself, and unpickles nothing
            restarts = plan.ranks[0].restarts
            fields = {"address": address, "port": port, "log_dir": folder, "restarts": restarts}
            if plan.places is None:
                return fields, b""
            places = [[place.node, place.slot] for place in plan.places]
            return {**fields, "places": places, "left_out": plan.ranks[0].left_out}, b""
        part = replace(job, plan=plan.part(index, port))
        return {"environ": environ, "host": handles[index].host, "log_dir": folder}, pickle.dumps(part)

    if not lost or not plan.rejoin_at_save:
        return Coordinator(plan, handles).run(make_start)
    with _watch(look, interval_s) as hosts_wait:
        return Coordinator(plan, handles, hosts_wait).run(make_start)


@contextlib.contextmanager
def _watch(look: Look, interval_s: float) -> Iterator[Callable[[], bool]]:
    """Look again and again, in a thread; give what tells whether hosts came back, which may be lost once more."""
    found, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(interval_s):
            if look(over.is_set):
                found.set()

    thread = threading.Thread(target=watch, name="mjtrain-return", daemon=True)
    thread.start()
    try:
        yield found.is_set
    finally:
        over.set()
        thread.join()  # no look is in progress any more
