"""A job whose nodes something else has started, one launcher each: node 0 waits at the master's address, others call.

Node 0 is the launcher of the whole job, as if it had reached the others by ssh. What comes in from the network is JSON
and never unpickled. Callers prove that they know the variable MJTRAIN_JOB_TOKEN, if node 0 has one.
"""

import hmac
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from mjtrain.errors import RequestError
from mjtrain.launcher.ipc.host_connection import HostConnection
from mjtrain.launcher.ipc.messages import MessageReader, encode_message
from mjtrain.launcher.ipc.network import connect_to, listen_at
from mjtrain.launcher.multinode.probe import installed_packages
from mjtrain.launcher.multinode.transport import HostHandle
from mjtrain.launcher.planning.external import ExternalNode

TOKEN_VARIABLE = "MJTRAIN_JOB_TOKEN"

_HANDSHAKE_S = 10.0
_RETRY_S = 0.5


class NodeRendezvousServer:
    """Node 0's end: all other nodes, gathered."""

    leads = True

    def __init__(self, world: ExternalNode, num_ranks: int, request: str, timeout_s: float) -> None:
        """Wait for the other nodes.

        Args:
            world: This node's place.
            num_ranks: Ranks on this node, and so on every other.
            request: What is to be done, in words that must be the same on every node.
            timeout_s: How long to wait, in seconds.

        Raises:
            ConnectionError: Some do not come; the message names them.
            RequestError: One wants something else, or has other packages.
        """
        self._world = world
        self._mine = describe_node(num_ranks, request)
        self._timeout_s = timeout_s
        self._server = listen_at(world.master_addr, world.master_port, for_others=True)
        self._callers: dict[int, HostHandle] = {}
        self.address = ""
        """Where the other nodes reach this one."""
        self.fill()

    def recall(self) -> None:
        """Nothing is left of earlier lives of this job."""
        return

    def agree(self, choose: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Choose for all nodes, and tell them."""
        try:
            choice = choose()
        except Exception as error:
            self._tell("choice", error=str(error), is_wrong=isinstance(error, RequestError))
            self.close()
            raise
        self._tell("choice", **choice)
        return choice

    def fill(self) -> list[HostHandle]:
        """Return a line to each of the other nodes, by node rank, once those that are missing have called (again)."""
        self._callers = {rank: line for rank, line in self._callers.items() if not line.link.lost}
        deadline_s = time.monotonic() + self._timeout_s
        while missing := [rank for rank in range(1, self._world.num_nodes) if rank not in self._callers]:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                nodes = f"node{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
                raise ConnectionError(
                    f"{nodes} of {self._world.num_nodes} did not come to {self._world.master_addr}:"
                    f"{self._world.master_port} within {self._timeout_s:g} s (--connect-timeout-s)"
                )
            if select.select([self._server], [], [], min(left_s, 1.0))[0]:
                self._welcome()
        return [self._callers[rank] for rank in sorted(self._callers)]

    def close(self) -> None:
        """Tell the others that the job will not be started again."""
        self._tell("over")
        for line in self._callers.values():
            line.link.flush(_HANDSHAKE_S)
            line.close()
        self._server.close()

    def _tell(self, kind: str, **fields: Any) -> None:
        for line in self._callers.values():
            line.link.send(kind, **fields)

    def _welcome(self) -> None:
        """Let a caller in, if it is one of the nodes and wants the same."""
        connection, _ = self._server.accept()
        with connection:
            connection.settimeout(_HANDSHAKE_S)
            nonce = os.urandom(16).hex()
            try:
                connection.sendall(encode_message("who", b"", {"nonce": nonce}))
                hello = _receive(connection)
                rank = int(hello["node_rank"])
                known = hmac.compare_digest(str(hello["proof"]), prove(nonce)) and 0 < rank < self._world.num_nodes
            except (OSError, ValueError, KeyError, TypeError):
                return  # a probe of the port, or a stranger
            if not known or (rank in self._callers and not self._callers[rank].link.lost):
                return
            difference = find_difference(self._mine, hello["node"])
            reply = {} if difference is None else {"refused": f"node {rank} {difference}"}
            connection.sendall(encode_message("welcome", b"", reply))
            if difference is not None:
                raise RequestError(f"node {rank} on host {hello['host']} {difference}")
            self.address = connection.getsockname()[0]
            connection.setblocking(True)
            link = HostConnection(os.dup(connection.fileno()), os.dup(connection.fileno()))
        self._callers[rank] = HostHandle(host=hello["host"], link=link, trusted=False)


class NodeRendezvousClient:
    """The end of any other node."""

    leads = False

    def __init__(self, world: ExternalNode, num_ranks: int, request: str, timeout_s: float) -> None:
        """Call node 0; arguments and errors as those of `NodeRendezvousServer`."""
        self._timeout_s = timeout_s
        self._what = f"node 0 at {world.master_addr}:{world.master_port}"
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.1, deadline_s - time.monotonic())
            with connect_to(world.master_addr, world.master_port, left_s, what="node 0 of this job") as connection:
                connection.settimeout(_HANDSHAKE_S)
                try:
                    nonce = _receive(connection)["nonce"]
                    hello = {"node_rank": world.node_rank, "host": socket.gethostname(), "proof": prove(nonce)}
                    node = describe_node(num_ranks, request)
                    connection.sendall(encode_message("hello", b"", {**hello, "node": node}))
                    reply = _receive(connection)
                    connection.setblocking(True)
                    self.link = HostConnection(os.dup(connection.fileno()), os.dup(connection.fileno()))
                    break
                except (OSError, ValueError, KeyError) as error:
                    if time.monotonic() > deadline_s:
                        raise ConnectionError(f"{self._what} does not let this node in") from error
            time.sleep(_RETRY_S)  # it may think that an earlier life of this node is still there
        if "refused" in reply:
            raise RequestError(f"{self._what} does not agree: {reply['refused']}")

    def recall(self) -> None:
        """Nothing is left of earlier lives of this job."""
        return

    def agree(self, _: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what node 0 chooses.

        Raises:
            RequestError: The request was wrong, as node 0 has found.
            ConnectionError: Node 0 has failed to choose, or is gone.
        """
        choice = self.wait_for("choice")
        if "error" not in choice:
            return choice
        if choice["is_wrong"]:
            raise RequestError(choice["error"])
        raise ConnectionError(f"node 0 could not begin: {choice['error']}")

    def wait_for(self, *kinds: str) -> dict[str, Any]:
        """Return the next message of one of these kinds.

        Raises:
            ConnectionError: Node 0 has gone, or says nothing for --connect-timeout-s.
        """
        deadline_s = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline_s and not self.link.lost:
            self.link.beat()
            if not select.select([self.link], [], [], 0.5)[0]:
                continue
            for message, _ in self.link.receive():
                if message["kind"] in kinds:
                    return message
        how = "has hung up" if self.link.lost else f"says nothing for {self._timeout_s:g} s"
        raise ConnectionError(f"{self._what} {how}")


def prove(nonce: str) -> str:
    """Prove that this process knows the job's token, without saying it."""
    return hmac.digest(os.environ.get(TOKEN_VARIABLE, "").encode(), nonce.encode(), "sha256").hex()


def describe_node(num_ranks: int, request: str) -> dict[str, Any]:
    """Return what must be the same on every node."""
    return {"num_ranks": num_ranks, "request": request, "packages": installed_packages()}


def find_difference(mine: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    """Say in words what a node has otherwise than node 0; None if it is all the same."""
    if theirs["num_ranks"] != mine["num_ranks"]:
        return f"has {theirs['num_ranks']} ranks and node 0 has {mine['num_ranks']}: start as many on every node"
    for package, version in mine["packages"].items():
        if theirs["packages"].get(package) != version:
            return f"has {package} {theirs['packages'].get(package)} and node 0 has {version}"
    if theirs["request"] != mine["request"]:
        pairs = zip(theirs["request"].splitlines(), mine["request"].splitlines(), strict=False)
        first = next((pair for pair in pairs if pair[0] != pair[1]), ("something", "something else"))
        return f"asks for {first[0].strip()} and node 0 for {first[1].strip()}: give every node the same command"
    return None


def _receive(connection: socket.socket) -> dict[str, Any]:
    """Read one message of the handshake."""
    reader = MessageReader()
    while data := connection.recv(1 << 16):
        for message, _ in reader.feed(data):
            if not isinstance(message, dict):
                raise ValueError("no message")
            return message
    raise ConnectionError("hung up")
