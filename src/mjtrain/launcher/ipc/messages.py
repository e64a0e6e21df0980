"""What the processes of a job say to each other, and the connection between hosts.

Ranks, the torchrunx agent and their supervisor talk over a Unix socket in a folder that only this user can enter;
supervisor and reaper over a pair of sockets; hosts over the standard streams of ssh or srun, or over TCP. Nothing that
arrives is unpickled here. A message is a line of JSON with its `kind` and its fields, and after it a body of
`num_bytes` bytes. Over a Unix socket, open files may come with it.

From a rank to its supervisor:

    hello         rank, pid, host           first of all; answered with the rank's output streams (open files)
    beat          progress, phase, waits,   once a second; `progress` is a count that grows with progress, `overdue` why
                  overdue                   it hangs by what it has shown, or empty
    signalled     signum                    this rank received a signal that asks for a stop
    stopping                                answer to `stop`: the function will return soon
    interrupting                            answer to `stop`: the function is interrupted
    injected      fault, phase              a fault that was asked for (--inject-fault) is about to happen
    done          paused                    the function has returned; `paused` if it saved because of `rejoin`, to be
                                            started again; body: what rank 0 of the host returned, pickled
    interrupted                             the function has been interrupted
    failed        traceback, summary,       the function has raised; body: the exception, pickled
                  phase, retry, complaint,
                  time_s

From the supervisor to a rank:

    stop          signum                    the job is asked to stop
    rejoin                                  hosts wait to be taken in: return after the next checkpoint

From the torchrunx agent to the supervisor:

    agent         pid, rank_pids            first of all
    exit          pid, exit_code            a rank's process has ended; a negative exit code is a signal's number

Between the nodes of a job that something else has started, before the coordinator takes over:

    who           nonce                     from node 0, to a node that has connected
    hello         node_rank, host, nonce,   the node's place, and proof that it knows the job's token
                  proof
    proof         proof                     from node 0: that it knows the token too
    node          num_ranks, request,       what the node wants
                  packages
    welcome       refused                   from node 0: whether the node is accepted
    choice        …                         from node 0: what the job has agreed on, or the error
    over                                    from node 0: the job is not started again

Between supervisor, or a sweep, and reaper:

    started       pid                       from the reaper: the first process runs
    exited        pid, exit_code            from the reaper: one of its children has ended
    end           kill, wait_s, grace_s     to the reaper: end every process of the job
    gone                                    from the reaper: no process of the job is left

From the coordinator of a job on several hosts to each host (`call`: from whoever probes hosts, before a job):

    call          environ, function,        calls a generator function of an installed module; answered with `value`
                  arguments
    port                                    asks for a free port; answered with `port`
    start         environ, host, log_dir    starts the host's ranks; body: the job, pickled (to hosts that a node
                  or address, port, …       rendezvous has connected: no body, but where rank 0 is)
    stop          signum                    the job is asked to stop
    rejoin                                  hosts wait to be taken in: return after the next checkpoint
    end           failure                   the job is over
    beat          stalled_s                 once a second, both ways: for how long the sender's loop has not turned

From each host to the coordinator:

    value         value                     what the function of a `call` has yielded
    returned                                it has returned
    port          port                      answer to `port`
    output        stream                    body: what belongs on the console
    begun                                   all ranks of the host have connected
    signalled     signum                    the host received a signal that asks for a stop
    injected      fault                     a fault that was asked for is about to happen on the host
    result        failure, stop_signal,     how the ranks of the host ended; body: what rank 0 returned or the
                  finished, not_saved_s,    exception, pickled
                  paused
    gone                                    no process of the job is left on the host
"""

import contextlib
import json
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjtrain.launcher.ipc.signals import STOP_SIGNALS

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

SOCKET_NAME = "launcher.sock"

MAX_LINE = 1 << 24
"""Most bytes of a line: the environment of a host, or what a job asks for."""

_FIELDS: dict[str, dict[str, type]] = {
    "hello": {"rank": int, "pid": int, "host": str},
    "beat": {"progress": int, "phase": str, "waits": bool, "overdue": str},
    "signalled": {"signum": int},
    "stopping": {},
    "interrupting": {},
    "injected": {"fault": str, "phase": str},
    "done": {"paused": bool},
    "interrupted": {},
    "failed": {"traceback": str, "summary": str, "phase": str, "retry": bool, "complaint": bool, "time_s": float},
    "agent": {"pid": int, "rank_pids": list},
    "exit": {"pid": int, "exit_code": int},
}
"""What a supervisor reads of each message of a rank or of the torchrunx agent."""

BEAT_INTERVAL_S = 1.0

HOST_TIMEOUT_S = 60.0
"""Time without any message after which the other end counts as lost: the machine or the network is down."""

STALL_TIMEOUT_S = 300.0
"""The same where heartbeats arrive, and say that the loop of the other end does not turn."""

_MAX_PENDING = 1 << 20

_MAX_BEFORE = 1 << 20
"""Bytes that may come before the first message."""


def listen(folder: Path) -> socket.socket:
    """Open the supervisor's end in a separate folder."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short_path(folder) as path:
        server.bind(path)
    server.listen(socket.SOMAXCONN)
    server.setblocking(False)
    return server


def connect(folder: Path) -> socket.socket:
    """Open a rank's end."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short_path(folder) as path:
        client.connect(path)
    return client


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Name the socket of a folder in the few characters that the kernel allows, however long the folder's name is."""
    fd = os.open(folder, os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_NAME}"
    finally:
        os.close(fd)


def encode_message(kind: str, body: bytes, fields: dict[str, Any]) -> bytes:
    """Return a message as it travels: a line of JSON, and the bytes beside it."""
    return json.dumps({"kind": kind, "num_bytes": len(body), **fields}).encode() + b"\n" + body


class MessageReader:
    """Cuts a stream into messages. Anything may arrive: what is not a message, or is too large, is a ValueError."""

    def __init__(self, max_line: int = MAX_LINE, max_body: int | None = None) -> None:
        """Begin with an empty stream. Limits are in bytes; `max_body` is None for a process of this user."""
        self._max_line, self._max_body = max_line, max_body
        self._buffer = bytearray()
        self._message: dict[str, Any] | None = None  # its body has not arrived yet

    @property
    def has_rest(self) -> bool:
        """Whether a part of another message has arrived."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Take in what came; yield each whole message with the bytes beside it."""
        self._buffer += data
        while self._message is not None or self._cut_line():
            assert self._message is not None
            num_bytes = self._message["num_bytes"]
            if len(self._buffer) < num_bytes:
                return
            message, body = self._message, bytes(self._buffer[:num_bytes])
            self._message = None
            del self._buffer[:num_bytes]
            yield message, body

    def _cut_line(self) -> bool:
        """Take the next line off the stream, if all of it is here."""
        end = self._buffer.find(b"\n", 0, self._max_line + 1)
        if end < 0:
            if len(self._buffer) > self._max_line:
                raise ValueError(f"a line of more than {self._max_line} bytes")
            return False
        try:
            message = json.loads(self._buffer[:end])
        except RecursionError as error:
            raise ValueError("a line that is nested too deeply") from error
        if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
            raise ValueError("a line that is not a message")
        num_bytes = message.setdefault("num_bytes", 0)
        if type(num_bytes) is not int or num_bytes < 0 or (self._max_body is not None and num_bytes > self._max_body):
            raise ValueError(f"a message with num_bytes {num_bytes!r}")
        del self._buffer[: end + 1]
        self._message = message
        return True


def check_message(message: dict[str, Any]) -> None:
    """Raise a ValueError unless this is a message of a rank or of the torchrunx agent, whose process may be damaged."""
    if message["kind"] not in _FIELDS:
        raise ValueError(f"a message {message['kind']!r}")
    for name, kind in _FIELDS[message["kind"]].items():
        read_field(message, name, kind)
    if message["kind"] == "signalled" and message["signum"] not in STOP_SIGNALS:
        raise ValueError(f"no signal that asks for a stop: {message['signum']}")
    for pid in (message.get("pid", 1), *message.get("rank_pids", ())):  # a signal to 0 or -1 would reach many
        if type(pid) is not int or not 0 < pid < 1 << 31:
            raise ValueError(f"{message['kind']} with process id {pid!r}")


def read_field(message: dict[str, Any], name: str, kind: type) -> Any:
    """Return a field of a message; raises a ValueError if it is missing or of another type."""
    value = message.get(name)
    if type(value) is not kind:
        raise ValueError(f"{message['kind']} with {name} {value!r}")
    return value


class Sender:
    """Sends messages; any thread may."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, kind: str, body: bytes = b"", **fields: Any) -> None:
        """Send one message with bytes beside it; raises an OSError if the other end is gone."""
        with self._lock:
            self._connection.sendall(encode_message(kind, body, fields))


def receive_descriptors(connection: socket.socket, count: int) -> list[int]:
    """Take open files that the other end hands over; raises a ConnectionError if the other end is gone."""
    _, descriptors, _, _ = socket.recv_fds(connection, 1, count)
    if len(descriptors) != count:
        raise ConnectionError("the supervisor has closed the connection")
    return descriptors


def await_readable(*files: "FileDescriptorLike", wait_s: float) -> list[int]:
    """Return the descriptors that become readable within wait_s seconds; unlike select, poll takes 1024 and above."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    wait_ms = 1000 * min(max(wait_s, 0.0), 1e6)  # poll waits without end for less than 0, and takes 32 bits
    return [descriptor for descriptor, _ in poll.poll(wait_ms)]


class HostConnection:
    """One end of the connection between coordinator and host. Only `send` may be called from any thread."""

    def __init__(self, read: int, write: int, *, skips_noise: bool = False, max_body: int | None = None) -> None:
        """Take over two descriptors: one to read from, another to write to.

        From now on a thread sends heartbeats. It does nothing with files, which may take any time.

        Args:
            skips_noise: Whether something else may come before the first message, such as what a start file of
                a shell prints.
            max_body: Most bytes beside a message that arrives; None for any number.
        """
        self._skips_noise, self._before = skips_noise, b""
        self._read, self._write = read, write
        self._reader = MessageReader(max_body=max_body)
        self._kept: list[tuple[dict[str, Any], bytes]] = []
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0
        self._turned_s = self.heard_s = time.monotonic()
        self._their_stall_s = 0.0
        self.timeout_s = HOST_TIMEOUT_S
        """Time without any message after which the other end counts as lost, in seconds."""
        self.lost = False
        """Whether the other end has closed the connection."""
        self._thread = threading.Thread(target=self._write_all, name="mjtrain-connection", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when something has arrived."""
        return self._read

    @property
    def congested(self) -> bool:
        """Whether so much waits to be sent that no more should be produced."""
        return self._pending > _MAX_PENDING

    def send(self, kind: str, body: bytes = b"", **fields: Any) -> None:
        """Queue a message. It may be lost with the connection, which `lost` tells later."""
        data = encode_message(kind, body, fields)
        with self._lock:
            self._pending += len(data)
        self._queue.put(data)

    def beat(self) -> None:
        """Say that the loop of this process turns; the heartbeats tell the other end when it last did."""
        self._turned_s = time.monotonic()

    def explain_silence(self, who: str = "from it") -> str | None:
        """Say why the other end counts as lost although it has not closed the connection; None if it does not."""
        if time.monotonic() - self.heard_s > self.timeout_s:
            return f"no message {who} for {self.timeout_s:g} s (--host-timeout-s): it is down, or the network is"
        if self._their_stall_s > STALL_TIMEOUT_S:
            return f"its launcher has waited for {STALL_TIMEOUT_S:g} s, most likely for a file system"
        return None

    def receive(self) -> list[tuple[dict[str, Any], bytes]]:
        """Return what has arrived at a readable connection; raises a ValueError if that is not messages."""
        try:
            data = os.read(self._read, 1 << 16)
        except OSError:
            data = b""
        self.lost = not data
        self.heard_s = time.monotonic()
        if self._skips_noise:
            data = self._skip_noise(data)
        messages = list(self._reader.feed(data))
        for message, _ in messages:
            stalled_s = message.get("stalled_s")
            self._their_stall_s = stalled_s if isinstance(stalled_s, float) else 0.0
        messages, self._kept = self._kept + messages, []
        return messages

    def await_message(self, wait_s: float) -> tuple[dict[str, Any], bytes]:
        """Return the next message, or one of kind "" if none has arrived after wait_s seconds or less.

        The messages after it are left for the next reader: a heartbeat makes the connection readable. Raises a
        ValueError unless it is a message.
        """
        if not self._kept and await_readable(self._read, wait_s=wait_s):
            self._kept = self.receive()
        return self._kept.pop(0) if self._kept else ({"kind": ""}, b"")

    def _skip_noise(self, data: bytes) -> bytes:
        """Return what has arrived from the first message on; nothing before that."""
        self._before += data
        if len(self._before) > _MAX_BEFORE:
            raise ValueError("what arrives is not mjtrain's")
        begin = self._before.find(b'{"kind": "')
        if begin < 0:
            return b""
        self._skips_noise = False
        return self._before[begin:]

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is sent, or the time is over."""
        deadline_s = time.monotonic() + timeout_s
        while self._pending and not self.lost and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def close(self) -> None:
        """Close the connection."""
        self._queue.put(None)
        os.close(self._read)

    def _next(self) -> bytes | None:
        """Return what is to be sent next: a heartbeat if nothing else is for a while, or None at the end."""
        try:
            return self._queue.get(timeout=BEAT_INTERVAL_S)
        except queue.Empty:
            self.send("beat", stalled_s=time.monotonic() - self._turned_s)
            return self._queue.get()

    def _write_all(self) -> None:
        while (data := self._next()) is not None:
            left = data
            with contextlib.suppress(OSError):  # the other end is closed; the reader finds out
                while left:
                    left = left[os.write(self._write, left) :]
            with self._lock:
                self._pending -= len(data)
        os.close(self._write)
