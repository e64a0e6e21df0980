"""A job whose nodes something else has started, with a launcher on each: node 0 listens, and the others connect to it.

Node 0 listens at the master's address and is the launcher of the whole job, as if it had reached the other nodes by
ssh. What arrives from the network is JSON and never unpickled. The other nodes prove that they know the variable
MJTRAIN_JOB_TOKEN, if node 0 has one.
"""

import contextlib
import hmac
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mjtrain.launcher.base import Choice, Choose, LaunchRequest
from mjtrain.launcher.failure import Failure, RunResult
from mjtrain.launcher.ipc.host_connection import HostConnection
from mjtrain.launcher.ipc.messages import MessageReader, encode_message
from mjtrain.launcher.ipc.network import connect_to, listen_at
from mjtrain.launcher.job.spawner import Job
from mjtrain.launcher.multinode.node_agent import run_part
from mjtrain.launcher.multinode.run import run_and_watch
from mjtrain.launcher.multinode.transport import HostHandle, open_handle
from mjtrain.launcher.planning.external import ExternalNode
from mjtrain.launcher.planning.places import list_places, part_of_node
from mjtrain.launcher.planning.plan import Place
from mjtrain.launcher.spawn import module_path, pickle_function, run_spawned, unpickle_value
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.machine import installed_packages

TOKEN_VARIABLE = "MJTRAIN_JOB_TOKEN"

_HANDSHAKE_S = 10.0
_RETRY_S = 0.5

_RETURN_S = 10.0
"""Time that a node has to connect again where the job may go on without it."""

_LATECOMER_S = 1.0
"""Time to look for nodes that wait to be taken in again: longer than one of them waits between two attempts."""


class NodeRendezvousServer:
    """Node 0's end: all other nodes are connected."""

    leads = True

    def __init__(self, external: ExternalNode, num_ranks: int, request: str, timeout_s: float) -> None:
        """Wait for the other nodes.

        Args:
            external: This node's place.
            num_ranks: Ranks on this node, and so on every other.
            request: What to do, in lines of text that must be the same on every node.
            timeout_s: How long to wait, in seconds.

        Raises:
            ConnectionError: Some nodes do not connect; the message names them.
            RequestError: A node has another request or other packages.
        """
        self._external = external
        self._mine = describe_node(num_ranks, request)
        self._timeout_s = timeout_s
        self._server = listen_at(external.master_addr, external.master_port, for_others=True)
        self._clients: dict[int, HostHandle] = {}
        self._address = ""  # at which the other nodes reach this one
        self._closed = False
        self._choice: Choice | None = None
        self._await_clients(range(1, external.num_nodes), timeout_s)

    def agree(self, choose: Choose) -> Choice:
        """Choose for all nodes, and tell them."""
        try:
            choice = choose(None)  # nothing is left of a job that something else started before
        except Exception as error:
            self._tell("choice", error=str(error), is_wrong=isinstance(error, RequestError))
            self.close()
            raise
        self._tell("choice", **choice)
        self._choice = choice
        return choice

    def run(self, request: LaunchRequest) -> Any:
        """Run the whole job, as its launcher."""

        def run_once(job: Job, log_dir: Path | None, absent: Sequence[int]) -> RunResult:
            elastic = job.plan.min_ranks is not None or job.plan.min_hosts is not None
            nodes = list(dict.fromkeys(place.node for place in list_places(job.plan)))
            try:
                clients = self._await_clients(nodes[1:], _RETURN_S if elastic else self._timeout_s)
            except ConnectionError as error:
                if not elastic:
                    raise
                lost = tuple(index for index, node in enumerate(nodes) if node != 0 and node not in self._clients)
                return RunResult(failure=Failure(summary=str(error), host_lost=True), lost_nodes=lost)
            handles = [open_handle("localhost", ssh_config_file=None, transport="ssh"), *clients]
            plan = replace(job.plan, master=(self._address, 0))
            look = partial(self._look_for, absent)
            return run_and_watch(replace(job, plan=plan), log_dir, handles, absent, look, _RETRY_S)

        return run_spawned(request, run_once, self._find_returned)

    def _find_returned(self, lost: Sequence[int]) -> list[int]:
        """Accept the nodes that wait to be taken in again, and return them."""
        deadline_s = time.monotonic() + _RETURN_S
        while time.monotonic() < deadline_s and self._accept_latecomer(_LATECOMER_S):
            pass
        return self._connected(lost)

    def _look_for(self, lost: Sequence[int], _: Callable[[], bool]) -> bool:
        """Accept a node that calls again while the job runs without it, and keep in touch with those that did.

        They wait for the next start of the job, which may take until a checkpoint is due.
        """
        self._accept_latecomer(0.0)
        for node in self._connected(lost):
            connection = self._clients[node].connection
            connection.beat()
            while not connection.lost and select.select([connection], [], [], 0.0)[0]:
                try:
                    connection.receive()
                except ValueError:  # the other end is not one of ours
                    connection.lost = True
        return bool(self._connected(lost))

    def _accept_latecomer(self, wait_s: float) -> bool:
        """Accept one node that connects within so many seconds; tell whether anything did."""
        if not select.select([self._server], [], [], wait_s)[0]:
            return False
        with contextlib.suppress(RequestError):  # it was started with another command, and told so
            self._accept()
        return True

    def _connected(self, nodes: Sequence[int]) -> list[int]:
        return [node for node in nodes if node in self._clients and not self._clients[node].connection.lost]

    def close(self) -> None:
        """Tell the other nodes that the job will not be started again."""
        if self._closed:
            return
        self._closed = True
        self._tell("over")
        for client in self._clients.values():
            client.connection.flush(_HANDSHAKE_S)
            client.close()
        self._server.close()

    def _await_clients(self, nodes: Sequence[int], timeout_s: float) -> list[HostHandle]:
        """Wait until some of the other nodes are connected (again), and return them in this order."""
        self._clients = {rank: client for rank, client in self._clients.items() if not client.connection.lost}
        deadline_s = time.monotonic() + timeout_s
        while missing := [rank for rank in nodes if rank not in self._clients]:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                some = f"node{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
                flag = " (--connect-timeout-s)" if timeout_s == self._timeout_s else ""
                raise ConnectionError(
                    f"{some} of {self._external.num_nodes} did not connect to {self._external.master_addr}:"
                    f"{self._external.master_port} within {timeout_s:g} s{flag}"
                )
            if select.select([self._server], [], [], min(left_s, 1.0))[0]:
                self._accept()
        return [self._clients[rank] for rank in nodes]

    def _tell(self, kind: str, **fields: Any) -> None:
        for client in self._clients.values():
            client.connection.send(kind, **fields)

    def _accept(self) -> None:
        """Accept a connection, if it comes from one of the nodes and that node has the same request."""
        connection, _ = self._server.accept()
        with connection:
            connection.settimeout(_HANDSHAKE_S)
            nonce = os.urandom(16).hex()
            try:
                connection.sendall(encode_message("challenge", b"", {"nonce": nonce}))
                hello = _receive(connection)
                rank = int(hello["node_rank"])
                known = hmac.compare_digest(str(hello["proof"]), prove(nonce)) and 0 < rank < self._external.num_nodes
            except (OSError, ValueError, KeyError, TypeError):
                return  # a port scan, or some other program
            if not known or (rank in self._clients and not self._clients[rank].connection.lost):
                return
            difference = find_difference(self._mine, hello["node"])
            reply = {} if difference is None else {"refused": f"node {rank} {difference}"}
            connection.sendall(encode_message("welcome", b"", reply))
            if difference is not None:
                raise RequestError(f"node {rank} on host {hello['host']} {difference}")
            self._address = connection.getsockname()[0]
            connection.setblocking(True)
            host_connection = HostConnection(os.dup(connection.fileno()), os.dup(connection.fileno()))
        self._clients[rank] = HostHandle(host=hello["host"], connection=host_connection, trusted=False)
        if self._choice is not None:  # it was started again; the others have heard it
            host_connection.send("choice", **self._choice)


class NodeRendezvousClient:
    """The end of any other node."""

    leads = False

    def __init__(self, external: ExternalNode, num_ranks: int, request: str, timeout_s: float) -> None:
        """Connect to node 0; arguments and errors as those of `NodeRendezvousServer`."""
        self._timeout_s = timeout_s
        self._server = f"node 0 at {external.master_addr}:{external.master_port}"
        self._closed = False
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.1, deadline_s - time.monotonic())
            with connect_to(
                external.master_addr, external.master_port, left_s, what="node 0 of this job"
            ) as connection:
                connection.settimeout(_HANDSHAKE_S)
                try:
                    nonce = _receive(connection)["nonce"]
                    hello = {"node_rank": external.node_rank, "host": socket.gethostname(), "proof": prove(nonce)}
                    node = describe_node(num_ranks, request)
                    connection.sendall(encode_message("hello", b"", {**hello, "node": node}))
                    reply = _receive(connection, then_more=True)
                    connection.setblocking(True)
                    self._connection = HostConnection(os.dup(connection.fileno()), os.dup(connection.fileno()))
                    break
                except (OSError, ValueError, KeyError) as error:
                    if time.monotonic() > deadline_s:
                        raise ConnectionError(
                            f"{self._server} rejected this node: {TOKEN_VARIABLE} must be the same on every node, and "
                            "each node rank must be used once"
                        ) from error
            time.sleep(_RETRY_S)  # node 0 may not have noticed yet that an earlier process of this node is gone
        if "refused" in reply:
            self.close()
            raise RequestError(f"{self._server} does not agree: {reply['refused']}")

    def agree(self, _: Choose) -> Choice:
        """Return what node 0 chooses.

        Raises:
            RequestError: The request was wrong, as node 0 has found.
            ConnectionError: Node 0 has failed to choose, or is gone.
        """
        choice = self._wait_for("choice")
        if "error" not in choice:
            return choice
        if choice["is_wrong"]:
            raise RequestError(choice["error"])
        raise ConnectionError(f"node 0 could not begin: {choice['error']}")

    def run(self, request: LaunchRequest) -> Any:
        """Run this node's ranks as often as node 0 says; return and raise as it does."""
        job = Job(plan=request.plan, payload=pickle_function(request), preload=request.preload)
        os.environ["PYTHONPATH"] = module_path()
        result = None
        try:
            while (message := self._wait_for("start", "over"))["kind"] == "start":
                result = self._run_once(job, message)
        except ConnectionError:
            if result is None or result.failure is None:
                raise
        if result is None:
            raise ConnectionError("node 0 of this job has ended it before it began")
        if result.failure is not None:
            raise result.failure.to_error() from None
        return unpickle_value(result)

    def close(self) -> None:
        """Close the connection."""
        if not self._closed:
            self._closed = True
            self._connection.close()

    def _run_once(self, job: Job, message: dict[str, Any]) -> RunResult:
        """Run this node's ranks until their end or the first failure of the job."""
        node_rank, plan = job.plan.ranks[0].node_rank, job.plan
        if "places" in message:
            places = [Place(node, slot) for node, slot in message["places"]]
            plan = part_of_node(plan, places, node_rank, tuple(message["left_out"]))
        plan = replace(plan.with_restarts(message["restarts"]), master=(message["address"], 0))
        part = replace(job, plan=plan.part(plan.ranks[0].node_rank, message["port"]))
        return run_part(self._connection, part, host=f"node{node_rank}", log_dir=message["log_dir"])

    def _wait_for(self, *kinds: str) -> dict[str, Any]:
        """Return the next message of one of these kinds.

        Raises:
            ConnectionError: Node 0 is gone, or sends nothing for --connect-timeout-s.
        """
        self._connection.heard_s = time.monotonic()
        while time.monotonic() - self._connection.heard_s < self._timeout_s and not self._connection.lost:
            self._connection.beat()
            if not select.select([self._connection], [], [], 0.5)[0]:
                continue
            for message, _ in self._connection.receive():
                if message["kind"] in kinds:
                    return message
        how = "closed its connection" if self._connection.lost else f"sent nothing for {self._timeout_s:g} s"
        raise ConnectionError(f"{self._server} {how}")


def prove(nonce: str) -> str:
    """Prove that this process knows the job's token, without revealing it."""
    return hmac.digest(os.environ.get(TOKEN_VARIABLE, "").encode(), nonce.encode(), "sha256").hex()


def describe_node(num_ranks: int, request: str) -> dict[str, Any]:
    """Return what must be the same on every node."""
    return {"num_ranks": num_ranks, "request": request, "packages": installed_packages()}


def find_difference(mine: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    """Say in words how a node differs from node 0; None if it does not."""
    if theirs["num_ranks"] != mine["num_ranks"]:
        theirs_count, ours = theirs["num_ranks"], mine["num_ranks"]
        return f"has {theirs_count} ranks and node 0 has {ours}: start the same number on every node"
    for package, version in mine["packages"].items():
        if theirs["packages"].get(package) != version:
            return f"has {package} {theirs['packages'].get(package)} and node 0 has {version}"
    if theirs["request"] != mine["request"]:
        pairs = zip(theirs["request"].splitlines(), mine["request"].splitlines(), strict=False)
        first = next((pair for pair in pairs if pair[0] != pair[1]), ("something", "something else"))
        return f"asks for {first[0].strip()} and node 0 for {first[1].strip()}: give every node the same command"
    return None


def _receive(connection: socket.socket, *, then_more: bool = False) -> dict[str, Any]:
    """Read one message of the handshake.

    Args:
        connection: To the other end.
        then_more: Whether messages may follow that somebody else will read.
    """
    reader = MessageReader()
    while seen := connection.recv(1 << 16, socket.MSG_PEEK):
        first = seen.find(b"\n") + 1
        for message, _ in reader.feed(connection.recv(first if then_more and first else len(seen))):
            if not isinstance(message, dict):
                raise ValueError("not a message")
            return message
    raise ConnectionError("the connection was closed")
