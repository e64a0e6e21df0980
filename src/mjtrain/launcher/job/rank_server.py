"""The supervisor's connections to the ranks of this host: their messages, and what they write."""

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mjtrain.launcher.ipc.messages import MessageReader, Sender, check_message, listen
from mjtrain.launcher.ipc.signals import EventLoop
from mjtrain.launcher.job.diagnosis import RankState
from mjtrain.launcher.job.outputs import LogFile, RankOutput, Sink
from mjtrain.launcher.planning.plan import LaunchPlan
from mjtrain.runtime.errors import SHORTAGES

if TYPE_CHECKING:
    from mjtrain.launcher.job.supervisor import Supervisor

_T = TypeVar("_T")

_SHORTAGE_PATIENCE_S = 60.0
"""Time to wait for free descriptors."""


@dataclass(eq=False)
class RankServer:
    """Accepts the ranks and the torchrunx agent, gives ranks their output streams, and passes their messages on."""

    plan: LaunchPlan
    scratch: Path
    log_dir: Path | None
    console: Sink
    _: KW_ONLY
    host: str
    is_here: bool
    loop: EventLoop
    listener: "Supervisor"
    """Hears what they send; the state is None where the torchrunx agent is at the other end."""
    states: dict[int, RankState] = field(default_factory=dict, init=False)
    """The ranks that have connected, by rank."""
    logs: dict[int, LogFile] = field(default_factory=dict, init=False)
    """Their log files, by rank."""
    _outputs: list[RankOutput] = field(default_factory=list, init=False)

    def listen(self) -> socket.socket:
        """Open the socket to which ranks connect; the caller closes it."""
        server = listen(self.scratch)
        self.loop.watch(server, lambda: self._accept(server))
        return server

    def mute(self) -> None:
        """Keep the output of ranks other than 0 off the console from now on."""
        for output in self._outputs:
            output.mute()

    def follow_size(self) -> None:
        """Set the size of rank 0's terminal to that of the real one."""
        for output in self._outputs:
            output.follow_size()

    def close(self, timeout_s: float) -> None:
        """Read the rest of the output, as far as it arrives in time, and close all streams and log files."""
        deadline_s = time.monotonic() + timeout_s
        for output in self._outputs:
            while output.streams and time.monotonic() < deadline_s:
                for descriptor in list(output.streams):
                    self._pump(output, descriptor)
            for descriptor in output.streams:
                self.loop.unwatch(descriptor)
                os.close(descriptor)
        self.console.close(timeout_s)
        deadline_s = time.monotonic() + timeout_s
        for log in self.logs.values():
            log.close(max(0.0, deadline_s - time.monotonic()))

    def _wait_out(self, action: Callable[[], _T]) -> _T:
        """Do something that needs descriptors; while there are none, retry, and say so once."""
        deadline_s, told = time.monotonic() + _SHORTAGE_PATIENCE_S, False
        while True:
            try:
                return action()
            except OSError as error:
                if error.errno not in SHORTAGES or time.monotonic() > deadline_s:
                    raise
                if not told:
                    self.console.write("stderr", f"warning: a rank has to wait: {error.strerror}\n".encode())
                told = True
                time.sleep(0.1)

    def _accept(self, server: socket.socket) -> None:
        connection, _ = self._wait_out(server.accept)
        connection.setblocking(True)
        reader, state = MessageReader(), None

        def hang_up() -> None:
            self.loop.unwatch(connection)
            connection.close()
            self.listener.on_hang_up(state)

        def receive() -> None:
            nonlocal state
            try:
                data = connection.recv(65536)
            except OSError:
                data = b""
            if not data:
                hang_up()
                return
            messages, damaged = [], False
            try:
                for message, body in reader.feed(data):
                    check_message(message)
                    messages.append((message, body))
            except ValueError:  # the rank's memory or its descriptors are damaged; it counts as gone
                damaged = True
            for message, body in messages:
                if message["kind"] == "hello":
                    expected = {context.rank for context in self.plan.ranks}
                    if message["rank"] not in expected or message["rank"] in self.states:
                        damaged = True
                        break
                    state = self._welcome(connection, message)
                self.listener.on_message(state, message, body)
            if damaged:
                hang_up()

        self.loop.watch(connection, receive)

    def _welcome(self, connection: socket.socket, message: dict[str, Any]) -> RankState:
        rank, now_s = message["rank"], time.monotonic()
        log = None
        if self.log_dir is not None:
            path = self.log_dir / f"{self.host}[{rank - self.plan.ranks[0].rank}].log"
            log = self.logs[rank] = LogFile(path, self.console)
        output = self._wait_out(lambda: RankOutput(rank, self.console, log, is_here=self.is_here))
        self._outputs.append(output)
        output.follow_size()
        with contextlib.suppress(OSError):  # it has ended already; reading from the connection will show that
            socket.send_fds(connection, [b"\0"], output.write_ends)
        output.close_write_ends()
        for descriptor in output.streams:
            self.loop.watch(descriptor, partial(self._pump, output, descriptor))
        state = self.states[rank] = RankState(
            rank=rank,
            pid=message["pid"],
            host=message["host"],
            sender=Sender(connection),
            heard_s=now_s,
            progressed_s=now_s,
        )
        self.listener.on_hello(state)
        return state

    def _pump(self, output: RankOutput, descriptor: int) -> None:
        """Read what a rank has written, unless the console is congested; the rank then waits as it would for a tty."""
        if self.console.congested:
            time.sleep(0.02)
        elif not output.pump(descriptor):
            self.loop.unwatch(descriptor)
            os.close(descriptor)
