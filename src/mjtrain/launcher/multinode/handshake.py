"""The handshake between node 0 and the other nodes of a job, before either uses what the other says.

Its messages, from `who` to `welcome`, are listed in their order in `mjtrain.launcher.ipc.messages`. Each end proves
that it knows the job's token. Node 0 tells others nothing, and a node describes itself only after node 0's proof.
Anyone may reach node 0's port: whatever arrives there is bounded in size and in time, and ends nothing but its own
connection.
"""

import contextlib
import hmac
import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from mjtrain.launcher.ipc.messages import MAX_LINE, MessageReader, encode_message, read_field
from mjtrain.launcher.planning.external import TOKEN_VARIABLE
from mjtrain.runtime.standard_streams import printable

HANDSHAKE_S = 10.0
"""Time for a whole handshake."""

_MAX_PENDING = 64
"""Handshakes at the same time. When one more connects, the oldest is given up: an honest node needs milliseconds."""

_MAX_HELLO = 4096

_NONCE_CHARS = 32


class Caller:
    """Whoever has connected to node 0."""

    def __init__(self, connection: socket.socket) -> None:
        """Ask who it is; raises an OSError if the connection is gone."""
        self.connection = connection
        self.deadline_s = time.monotonic() + HANDSHAKE_S
        self.node_rank = 0
        """The node that it has proved to be; 0 before."""
        self.host = ""
        self.node: dict[str, Any] = {}
        """What it wants."""
        self._nonce = os.urandom(_NONCE_CHARS // 2).hex()
        self._reader = MessageReader(_MAX_HELLO, max_body=0)
        self.tell("who", nonce=self._nonce)

    def tell(self, kind: str, **fields: Any) -> None:
        """Send a message, which fits into the buffer of a connection that is read; raises an OSError if it is not."""
        data = encode_message(kind, b"", fields)
        if self.connection.send(data) != len(data):
            raise ConnectionError("the other end does not read")

    def hear(self, is_vacant: Callable[[int], bool]) -> bool:
        """Take in what has arrived; return whether the caller has said what it wants, and raise if it is not a node."""
        data = self.connection.recv(1 << 16)
        if not data:
            raise ConnectionError("the connection was closed")
        messages = list(self._reader.feed(data))
        if not messages:
            return False
        ((message, _),) = messages
        if self._reader.has_rest:
            raise ValueError("a node waits for the answer")
        if self.node_rank == 0:
            self._take_hello(message, is_vacant)
            return False
        kinds = {"num_ranks": int, "request": str, "packages": dict}
        self.node = {name: read_field(message, name, kind) for name, kind in kinds.items()}
        return True

    def _take_hello(self, message: dict[str, Any], is_vacant: Callable[[int], bool]) -> None:
        rank = read_field(message, "node_rank", int)
        host, nonce, proof = (read_field(message, name, str) for name in ("host", "nonce", "proof"))
        if rank < 1:
            raise ValueError("not a node")
        if len(nonce) != _NONCE_CHARS:
            raise ValueError("not a hello")
        nonces = (self._nonce, nonce)
        if not hmac.compare_digest(proof.encode(), prove("node", rank, nonces).encode()) or not is_vacant(rank):
            raise ValueError("not one of the nodes")
        self.tell("proof", proof=prove("node 0", rank, nonces))
        self.node_rank, self.host = rank, printable(host[:255])
        self._reader = MessageReader(MAX_LINE, max_body=0)

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self.connection.close()


class Callers:
    """All handshakes of node 0 in progress. None of them is waited for."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._pending: list[Caller] = []
        self._selector = selectors.DefaultSelector()
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ)

    @property
    def busy(self) -> bool:
        """Whether a handshake is in progress."""
        return bool(self._pending)

    def turn(self, wait_s: float, is_vacant: Callable[[int], bool]) -> list[Caller]:
        """Wait until something arrives, so many seconds at most, and take it in.

        Returns:
            The nodes whose handshake lacks only the welcome; the caller closes their connections.
        """
        now_s = time.monotonic()
        first_s = min((caller.deadline_s for caller in self._pending), default=now_s + wait_s)
        ready = self._selector.select(max(0.0, min(wait_s, first_s - now_s)))
        known = []
        for key, _ in ready:
            caller = key.data
            if caller is None or caller not in self._pending:
                continue
            try:
                if caller.hear(is_vacant):
                    self._forget(caller)
                    known.append(caller)
            except Exception:  # a port scan, or any other program: nothing that it sends may end the job
                self._give_up(caller)
        if any(key.data is None for key, _ in ready):
            self._accept()
        for caller in [caller for caller in self._pending if time.monotonic() > caller.deadline_s]:
            self._give_up(caller)
        return known

    def close(self) -> None:
        """Give up all handshakes, and stop listening."""
        for caller in list(self._pending):
            self._give_up(caller)
        self._selector.close()
        self._server.close()

    def _accept(self) -> None:
        for _ in range(_MAX_PENDING):
            try:
                connection, _ = self._server.accept()
            except BlockingIOError:
                return
            except OSError:  # it has hung up already, or this process has no descriptors left for a moment
                time.sleep(0.02)
                return
            connection.setblocking(False)
            try:
                caller = Caller(connection)
            except OSError:
                connection.close()
                continue
            if len(self._pending) >= _MAX_PENDING:
                strangers = [other for other in self._pending if other.node_rank == 0]
                self._give_up((strangers or self._pending)[0])
            self._pending.append(caller)
            self._selector.register(connection, selectors.EVENT_READ, caller)

    def _forget(self, caller: Caller) -> None:
        self._pending.remove(caller)
        self._selector.unregister(caller.connection)

    def _give_up(self, caller: Caller) -> None:
        self._forget(caller)
        caller.close()


def introduce(connection: socket.socket, node_rank: int, node: dict[str, Any]) -> dict[str, Any]:
    """Do a node's part of the handshake.

    Returns:
        The welcome, which may be a refusal. What node 0 sends after it is left to be read.

    Raises:
        OSError: Node 0 rejects this node, or does not answer in time.
        KeyError, ValueError: The other end is not node 0 of this job.
    """
    deadline_s = time.monotonic() + HANDSHAKE_S
    theirs, mine = str(receive(connection, deadline_s)["nonce"]), os.urandom(_NONCE_CHARS // 2).hex()
    nonces = (theirs, mine)
    hello = {"node_rank": node_rank, "host": socket.gethostname(), "nonce": mine}
    connection.sendall(encode_message("hello", b"", {**hello, "proof": prove("node", node_rank, nonces)}))
    proof = str(receive(connection, deadline_s)["proof"])
    if not hmac.compare_digest(proof.encode(), prove("node 0", node_rank, nonces).encode()):
        raise ValueError("it does not know the token")
    connection.sendall(encode_message("node", b"", node))
    return receive(connection, deadline_s)


def receive(connection: socket.socket, deadline_s: float) -> dict[str, Any]:
    """Read one message of node 0, and nothing after it; raises an OSError if it is late, a ValueError if damaged."""
    reader = MessageReader(MAX_LINE, max_body=0)
    while (left_s := deadline_s - time.monotonic()) > 0:
        connection.settimeout(left_s)
        seen = connection.recv(1 << 16, socket.MSG_PEEK)
        if not seen:
            raise ConnectionError("the connection was closed")
        for message, _ in reader.feed(connection.recv(seen.find(b"\n") + 1 or len(seen))):
            return message
    raise TimeoutError("no answer in time")


def prove(role: str, node_rank: int, nonces: tuple[str, str]) -> str:
    """Prove that this process knows the job's token, without revealing it.

    Args:
        role: Which end proves it, so that neither can send back what the other has sent.
        nonces: Random texts, of node 0 and of that node.
    """
    text = "\n".join(("mjtrain", role, str(node_rank), *nonces))
    return hmac.digest(os.environ.get(TOKEN_VARIABLE, "").encode(), text.encode(), "sha256").hex()
