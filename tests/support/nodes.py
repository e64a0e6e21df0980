"""Node 0 of two in a thread, and node 1 that connects to it, both in the test's process."""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from mjtrain.launcher.multinode.node_rendezvous import NodeRendezvousClient, NodeRendezvousServer
from mjtrain.launcher.planning.external import ExternalNode
from support.machine import free_port, patience


@contextlib.contextmanager
def listening(port: int, request: str = "speed: 1") -> Iterator[Callable[[], NodeRendezvousServer]]:
    """Start node 0 in a thread; yields what waits for it. At the end it is closed twice, which must be no error."""
    place = ExternalNode(node_rank=0, num_nodes=2, master_addr="127.0.0.1", master_port=port)
    with ThreadPoolExecutor() as pool:
        server = pool.submit(NodeRendezvousServer, place, 1, request, patience(30.0))
        yield lambda: server.result(patience(30.0))
        server.result(patience(30.0)).close()
        server.result(patience(30.0)).close()


def connect(port: int, request: str = "speed: 1") -> NodeRendezvousClient:
    """Be node 1."""
    place = ExternalNode(node_rank=1, num_nodes=2, master_addr="127.0.0.1", master_port=port)
    return NodeRendezvousClient(place, 1, request, patience(30.0))


@contextlib.contextmanager
def node_pair() -> Iterator[tuple[NodeRendezvousServer, NodeRendezvousClient]]:
    port = free_port()
    with listening(port) as server, contextlib.closing(connect(port)) as client:
        yield server(), client
