"""The connection between the coordinator of a job and the agent of a node: messages both ways, and heartbeats.

The messages are those of `messages`. Nothing is unpickled here.
"""

import contextlib
import os
import queue
import threading
import time
from typing import Any

from mjtrain.launcher.ipc.messages import MessageReader, encode_message

BEAT_INTERVAL_S = 1.0

UNRESPONSIVE_S = 15.0
"""Time without any message after which the other end counts as lost: the machine or the network is down."""

_MAX_PENDING = 1 << 20


class HostConnection:
    """One end of the connection. Only `send` may be called from any thread."""

    def __init__(self, read: int, write: int, max_body: int | None = None) -> None:
        """Take over two descriptors: one to read from, another to write to.

        Args:
            read: To read from.
            write: To write to.
            max_body: Most bytes beside a message that arrives; None for any number.
        """
        self._read, self._write = read, write
        self._reader = MessageReader(max_body=max_body)
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0
        self._beat_s = self.heard_s = time.monotonic()
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
        """Send a heartbeat if one is due."""
        if time.monotonic() - self._beat_s >= BEAT_INTERVAL_S:
            self._beat_s = time.monotonic()
            self.send("beat")

    @property
    def unresponsive(self) -> bool:
        """Whether nothing has arrived for so long that the other end must be down."""
        return time.monotonic() - self.heard_s > UNRESPONSIVE_S

    def receive(self) -> list[tuple[dict[str, Any], bytes]]:
        """Return the messages that have arrived; call it when the connection is readable.

        Raises:
            ValueError: What arrived is not a message.
        """
        try:
            data = os.read(self._read, 1 << 16)
        except OSError:
            data = b""
        self.lost = not data
        self.heard_s = time.monotonic()
        return list(self._reader.feed(data))

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is sent, or the time is over."""
        deadline_s = time.monotonic() + timeout_s
        while self._pending and not self.lost and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def close(self) -> None:
        """Close the connection."""
        self._queue.put(None)
        os.close(self._read)

    def _write_all(self) -> None:
        while (data := self._queue.get()) is not None:
            left = data
            with contextlib.suppress(OSError):  # the other end is closed; the reader finds out
                while left:
                    left = left[os.write(self._write, left) :]
            with self._lock:
                self._pending -= len(data)
        os.close(self._write)
