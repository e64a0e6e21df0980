"""The connection between the coordinator of a job and the agent of a node: messages both ways, and heartbeats.

The messages are those of `messages`. Nothing is unpickled here.
"""

import contextlib
import os
import queue
import select
import threading
import time
from typing import Any

from mjtrain.launcher.ipc.messages import MessageReader, encode_message

BEAT_INTERVAL_S = 1.0

HOST_TIMEOUT_S = 60.0
"""Time without any message after which the other end counts as lost: the machine or the network is down."""

STALL_TIMEOUT_S = 300.0
"""The same where heartbeats arrive, and say that the loop of the other end does not turn."""

_MAX_PENDING = 1 << 20

_MAX_BEFORE = 1 << 20
"""Bytes that may come before the first message."""


class HostConnection:
    """One end of the connection. Only `send` may be called from any thread."""

    def __init__(self, read: int, write: int, *, skips_noise: bool = False, max_body: int | None = None) -> None:
        """Take over two descriptors: one to read from, another to write to.

        From now on a thread sends heartbeats. It does nothing with files, which may take any time.

        Args:
            skips_noise: Whether something else may come before the first message, as where a start file of
                a shell prints something.
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

        The messages after it are left for whoever reads next: a heartbeat makes the connection readable.

        Raises:
            ValueError: What arrives is not messages.
        """
        if not self._kept and select.select([self._read], [], [], wait_s)[0]:
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
