"""What ranks and launcher say to each other: JSON lines over a Unix socket, with open files and bytes beside them.

The socket lies in a folder that only this user can enter. Nothing that comes through it is unpickled here.
"""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOCKET_NAME = "launcher.sock"


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Name the socket of a folder in the few characters that the kernel allows, however long the folder's name is."""
    fd = os.open(folder, os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_NAME}"
    finally:
        os.close(fd)


def listen(folder: Path) -> socket.socket:
    """Open the launcher's end in a folder of its own."""
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


def encode_message(kind: str, body: bytes, fields: dict[str, Any]) -> bytes:
    """Return a message as it travels: a line of JSON, and the bytes beside it."""
    return json.dumps({"kind": kind, "num_bytes": len(body), **fields}).encode() + b"\n" + body


class MessageReader:
    """Cuts a stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Take in what came; yield each whole message with the bytes beside it."""
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            message = json.loads(self._buffer[:end])
            stop = end + 1 + message.get("num_bytes", 0)
            if len(self._buffer) < stop:
                return
            body = bytes(self._buffer[end + 1 : stop])
            del self._buffer[:stop]
            yield message, body


class Sender:
    """Sends messages; any thread may."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, kind: str, body: bytes = b"", **fields: Any) -> None:
        """Send one message with bytes beside it.

        Raises:
            OSError: The other end is gone.
        """
        with self._lock:
            self._connection.sendall(encode_message(kind, body, fields))


def send_descriptors(connection: socket.socket, descriptors: list[int]) -> None:
    """Hand open files to the other end, which takes them with `receive_descriptors`."""
    socket.send_fds(connection, [b"\0"], descriptors)


def receive_descriptors(connection: socket.socket, count: int) -> list[int]:
    """Take open files that the other end hands over.

    Raises:
        ConnectionError: The other end is gone.
    """
    _, descriptors, _, _ = socket.recv_fds(connection, 1, count)
    if len(descriptors) != count:
        raise ConnectionError("the launcher is gone")
    return descriptors
