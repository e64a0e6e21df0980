"""A job whose nodes something else has started, with a launcher on each: node 0 listens, and the others connect to it.

Node 0 listens at the master's address and is the launcher of the whole job, as if it had reached the other nodes by
ssh. What arrives from the network is JSON and never unpickled. Node 0 and the others prove to each other that they
know the variable MJTRAIN_JOB_TOKEN.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mjtrain.launcher.base import Decide, Decision, LaunchRequest, find_other_line
from mjtrain.launcher.failure import Failure, RunResult
from mjtrain.launcher.ipc.messages import HostConnection, await_readable
from mjtrain.launcher.ipc.network import Wait, connect_to, listen_at
from mjtrain.launcher.job.spawner import Job
from mjtrain.launcher.multinode.coordinator import run_and_watch
from mjtrain.launcher.multinode.handshake import Caller, Callers, introduce
from mjtrain.launcher.multinode.node_agent import run_part
from mjtrain.launcher.multinode.transport import HostHandle, open_handle
from mjtrain.launcher.planning.external import TOKEN_VARIABLE, ExternalNode
from mjtrain.launcher.planning.membership import list_places, part_of_node
from mjtrain.launcher.planning.plan import Place
from mjtrain.launcher.rank.spawned import pickle_with_code
from mjtrain.launcher.spawn import run_spawned, unpickle_value
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.machine import installed_packages
from mjtrain.runtime.processes import module_path
from mjtrain.runtime.standard_streams import printable, write_to_stderr

_FLUSH_S = 10.0
_RETRY_S = 0.5

_RETURN_S = 10.0
"""Time that a node has to connect again where the job may continue without it."""

_LATECOMER_S = 1.0
"""Time to look for nodes that wait to be taken in again: longer than one of them waits between two attempts."""

_MAX_BODY = 1 << 28
"""Most bytes beside a message of another node: what its first rank returned."""


class NodeRendezvousServer:
    """Node 0's end: all other nodes are connected."""

    leads = True

    def __init__(self, external: ExternalNode, num_ranks: int, request: str, timeout_s: float) -> None:
        """Wait for the other nodes; see `launcher.rendezvous` for errors."""
        self._external = external
        self._mine = describe_node(num_ranks, request, external.num_nodes)
        self._timeout_s = timeout_s
        server = listen_at(external.master_addr, external.master_port, for_others=True)
        self._callers = Callers(server)
        self._refused: dict[int, str] = {}  # by node, how it differs
        self._clients: dict[int, HostHandle] = {}
        self._replaced: list[HostHandle] = []  # lost, and not closed yet
        self._address = ""  # at which the other nodes reach this one
        self._closed = False
        self._choice: Decision | None = None
        try:
            self._await_clients(range(1, external.num_nodes), Wait(timeout_s))
        except BaseException:
            self._callers.close()
            raise

    def agree(self, decide: Decide) -> Decision:
        """Choose for all nodes, and tell them."""
        try:
            choice = decide(None)  # nothing is left of a job that something else started before
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
                clients = self._await_clients(nodes[1:], Wait(_RETURN_S, "") if elastic else Wait(self._timeout_s))
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
        begin_s = time.monotonic()
        deadline_s = begin_s + _LATECOMER_S
        while (left_s := min(deadline_s, begin_s + _RETURN_S) - time.monotonic()) > 0:
            if self._accept(left_s):
                deadline_s = time.monotonic() + _LATECOMER_S
        return self._connected(lost)

    def _look_for(self, lost: Sequence[int], _: Callable[[], bool]) -> list[int]:
        """Accept nodes that call again, keep in touch with those that did, and return these; they wait for a start."""
        self._accept(0.0)
        deadline_s = time.monotonic() + _RETRY_S
        while self._callers.busy and (left_s := deadline_s - time.monotonic()) > 0:
            self._accept(left_s)
        for node in self._connected(lost):
            connection = self._clients[node].connection
            connection.beat()
            while not connection.lost and await_readable(connection, wait_s=0.0):
                try:
                    connection.receive()
                except ValueError:  # the other end is not one of ours
                    connection.lost = True
        return self._connected(lost)

    def _connected(self, nodes: Sequence[int]) -> list[int]:
        return [node for node in nodes if not self._is_vacant(node)]

    def _is_vacant(self, node: int) -> bool:
        return node not in self._clients or self._clients[node].connection.lost

    def close(self) -> None:
        """Tell the other nodes that the job will not be started again."""
        if self._closed:
            return
        self._closed = True
        self._tell("over")
        for client in self._clients.values():
            client.connection.flush(_FLUSH_S)
        for client in (*self._clients.values(), *self._replaced):
            client.close()
        self._callers.close()

    def _await_clients(self, nodes: Sequence[int], wait: Wait) -> list[HostHandle]:
        """Wait until some of the other nodes are connected (again), and return them in this order."""
        for rank in [rank for rank, client in self._clients.items() if client.connection.lost]:
            self._replaced.append(self._clients.pop(rank))
        while self._replaced:  # a node that this one has given up would wait for a start otherwise
            self._replaced.pop().close()
        while missing := [rank for rank in nodes if rank not in self._clients]:
            wait.check(partial(self._explain_absence, missing))
            self._accept(min(wait.left_s, 1.0))
        return [self._clients[rank] for rank in nodes]

    def _explain_absence(self, missing: Sequence[int], within: str) -> str:
        external = self._external
        some = f"node{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        why = "".join(f"; {self._refused[rank]}" for rank in missing if rank in self._refused)
        place = f"{external.master_addr}:{external.master_port}"
        return f"{some} of {external.num_nodes} did not connect to {place} {within}{why}"

    def _tell(self, kind: str, **fields: Any) -> None:
        for client in self._clients.values():
            client.connection.send(kind, **fields)

    def _accept(self, wait_s: float) -> bool:
        """Wait so many seconds at most for what arrives, and take in the nodes that have shaken hands."""
        taken_in = False
        for caller in self._callers.turn(wait_s, self._is_vacant):
            try:
                taken_in = self._take_in(caller) or taken_in
            finally:
                caller.close()
        return taken_in

    def _take_in(self, caller: Caller) -> bool:
        """Welcome or refuse a node; return whether it is connected."""
        rank = caller.node_rank
        if not self._is_vacant(rank):  # two have called at the same time
            return False
        difference = find_difference(self._mine, caller.node)
        if difference is not None:
            return self._refuse(caller, printable(f"node {rank} on host {caller.host} {difference}"))
        if rank >= self._external.num_nodes:
            return False
        try:
            caller.tell("welcome")
            self._address = caller.connection.getsockname()[0]
            caller.connection.setblocking(True)
            read, write = os.dup(caller.connection.fileno()), os.dup(caller.connection.fileno())
        except OSError:  # it has ended meanwhile, and may call again
            return False
        connection = HostConnection(read, write, max_body=_MAX_BODY)
        if rank in self._clients:  # it was lost, and its coordinator may still watch it
            self._replaced.append(self._clients[rank])
        self._clients[rank] = HostHandle(host=caller.host, connection=connection, trusted=False)
        self._refused.pop(rank, None)
        if self._choice is not None:  # it was started again; the others have heard it
            connection.send("choice", **self._choice)
        return True

    def _refuse(self, caller: Caller, difference: str) -> bool:
        """Tell a node how it differs. A job that has agreed waits for a node that does not; another one ends."""
        with contextlib.suppress(OSError):
            caller.tell("welcome", refused=difference)
        if self._choice is None:
            raise RequestError(difference)
        if self._refused.get(caller.node_rank) != difference:
            write_to_stderr(f"refused {difference}")
        self._refused[caller.node_rank] = difference
        return False


class NodeRendezvousClient:
    """The end of any other node."""

    leads = False

    def __init__(self, external: ExternalNode, num_ranks: int, request: str, timeout_s: float) -> None:
        """Connect to node 0; arguments and errors as those of `NodeRendezvousServer`."""
        self._timeout_s = timeout_s
        self._server = f"node 0 at {external.master_addr}:{external.master_port}"
        self._closed = False
        node = describe_node(num_ranks, request, external.num_nodes)
        wait = Wait(timeout_s)
        while True:
            with connect_to(external.master_addr, external.master_port, wait, what="node 0 of this job") as connection:
                try:
                    reply = introduce(connection, external.node_rank, node)
                    connection.setblocking(True)
                    self._connection = HostConnection(os.dup(connection.fileno()), os.dup(connection.fileno()))
                    break
                except (OSError, ValueError, KeyError):
                    wait.check(
                        lambda within: (
                            f"{self._server} did not accept this node {within}: {TOKEN_VARIABLE} must be "
                            "the same on every node, and each node rank must be used only once"
                        )
                    )
            time.sleep(_RETRY_S)  # node 0 may not have noticed yet that an earlier process of this node is gone
        if "refused" in reply:
            self.close()
            raise RequestError(f"{self._server} does not agree: {reply['refused']}")

    def agree(self, _: Decide) -> Decision:
        """Return what node 0 chooses."""
        choice = self._wait_for("choice")
        if "error" not in choice:
            return choice
        if choice["is_wrong"]:
            raise RequestError(choice["error"])
        raise ConnectionError(f"node 0 could not begin: {choice['error']}")

    def run(self, request: LaunchRequest) -> Any:
        """Run this node's ranks as often as node 0 says; return and raise as it does."""
        job = Job(plan=request.plan, payload=pickle_with_code((request.fn, request.args)), preload=request.preload)
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
        node_rank, plan = job.plan.ranks[0].node_rank, job.plan
        if "places" in message:
            places = [Place(node, slot) for node, slot in message["places"]]
            plan = part_of_node(plan, places, node_rank, tuple(message["left_out"]))
        plan = replace(plan.with_restarts(message["restarts"]), master=(message["address"], 0))
        part = replace(job, plan=plan.part(plan.ranks[0].node_rank, message["port"]))
        environ = {**os.environ, "PYTHONPATH": module_path()}
        return run_part(self._connection, part, environ, host=f"node{node_rank}", log_dir=message["log_dir"])

    def _wait_for(self, *kinds: str) -> dict[str, Any]:
        self._connection.heard_s = time.monotonic()
        while time.monotonic() - self._connection.heard_s < self._timeout_s and not self._connection.lost:
            self._connection.beat()
            try:
                message, _ = self._connection.await_message(0.5)
            except ValueError as error:
                raise ConnectionError(f"{self._server} sends what is not a message") from error
            if message["kind"] in kinds:
                return message
        how = "closed its connection" if self._connection.lost else f"sent nothing for {self._timeout_s:g} s"
        raise ConnectionError(f"{self._server} {how}")


def describe_node(num_ranks: int, request: str, num_nodes: int) -> dict[str, Any]:
    """Return what must be the same on every node."""
    return {
        "num_ranks": num_ranks,
        "request": f"a job of {num_nodes} nodes\n{request}",
        "packages": installed_packages(),
    }


def find_difference(mine: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    """Say in words how a node differs from node 0; None if it does not."""
    if theirs["num_ranks"] != mine["num_ranks"]:
        theirs_count, ours = theirs["num_ranks"], mine["num_ranks"]
        return f"has {theirs_count} ranks and node 0 has {ours}: start the same number on every node"
    for package, version in mine["packages"].items():
        if theirs["packages"].get(package) != version:
            return f"has {package} {theirs['packages'].get(package)} and node 0 has {version}"
    return find_other_line(theirs["request"], mine["request"], "node 0")
