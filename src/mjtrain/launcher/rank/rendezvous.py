"""How ranks that somebody else has started find each other: through a store at the master's address.

torchrun's store outlives its ranks, so what a world left there is still to be seen after a restart. Each world
therefore agrees on a session first, and what belongs to it lies below the session's name.
"""

import contextlib
import json
import socket
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mjtrain.errors import RequestError
from mjtrain.launcher.ipc.network import choose_gloo_interface, connect_to, is_local, listen_at
from mjtrain.launcher.planning.external import ExternalRank
from mjtrain.rank import RankContext

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

_LOOK_INTERVAL_S = 0.05

_HEARING_S = 5.0
"""How long rank 0 stays for the others to hear why it leaves."""

_count = 0
"""Meetings that this process has held: what a script trains first, second and so on are different runs."""


class RankRendezvous:
    """All ranks of a world, gathered."""

    def __init__(self, world: ExternalRank, timeout_s: float) -> None:
        """Wait for the other ranks.

        Args:
            world: This rank's place.
            timeout_s: How long to wait for the master, and then for the other ranks, in seconds.

        Raises:
            ConnectionError: The master cannot be reached, or ranks do not come; the message names them.
        """
        global _count
        from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

        self._world = world
        self._timeout_s = timeout_s
        everything, self._seen = _open_store(world, timeout_s)
        self._memory = PrefixStore(f"mjtrain/{_count}", everything)
        _count += 1
        session, words = self._agree_on_session()
        self._hosts = [word[1] for word in words]
        self.master_address = _pick_address([word[2] for word in words])
        """The address under which other hosts see the master, whatever the master itself makes of its name."""
        self._store = PrefixStore(session, self._memory)

    @property
    def store(self) -> "Store":
        """Where the process group of this world meets."""
        return self._store

    @property
    def leads(self) -> bool:
        """Whether this rank decides for all."""
        return self._world.rank == 0

    def recall(self) -> dict[str, Any] | None:
        """Return what this world agreed on before it was restarted; None in its first life."""
        return json.loads(self._memory.get("choice")) if self._memory.check(["choice"]) else None

    def agree(self, choose: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what rank 0 chooses, plain values; every rank must call it.

        Raises:
            RequestError: The request was wrong, as rank 0 has found.
            ConnectionError: Rank 0 has failed to choose; the message says why.
        """
        if self.leads:
            try:
                choice = choose()
            except Exception as error:
                is_wrong = isinstance(error, RequestError)
                self._store.set("choice", json.dumps({"error": str(error), "is_wrong": is_wrong}))
                others = [f"heard/{rank}" for rank in range(1, self._world.world_size)]
                with contextlib.suppress(RuntimeError):  # the store may go with this process; a rank may be gone
                    self._store.wait(others, timedelta(seconds=_HEARING_S))
                raise
            self._memory.set("choice", json.dumps(choice))
            self._store.set("choice", json.dumps(choice))
            return choice
        self._store.wait(["choice"], timedelta(seconds=self._timeout_s))
        choice = json.loads(self._store.get("choice"))
        if "error" in choice:
            self._store.set(f"heard/{self._world.rank}", "")
            if choice["is_wrong"]:
                raise RequestError(choice["error"])
            raise ConnectionError(f"rank 0 could not begin: {choice['error']}")
        return choice

    def describe(self) -> str:
        """Say which ranks are on which host."""
        by_host = defaultdict(list)
        for rank, host in enumerate(self._hosts):
            by_host[host].append(str(rank))
        return "; ".join(
            f"{host} has {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranks)}" for host, ranks in by_host.items()
        )

    def _agree_on_session(self) -> tuple[str, list[Any]]:
        """Find out who is there now, whatever earlier worlds have left in the store.

        Every rank leaves a fresh word under its number. Rank 0 publishes a session with the words it sees, anew when
        one changes; a rank that finds its own word in it agrees. A session that all agree on is of living ranks only.

        Returns:
            The session's name, and the word of every rank.
        """
        rank, world_size, store = self._world.rank, self._world.world_size, self._memory
        word = uuid.uuid4().hex
        store.set(f"word/{rank}", json.dumps([word, socket.gethostname(), self._seen]))
        names = [f"word/{other}" for other in range(world_size)]
        session = ""
        words: list[Any] = []
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            if self.leads:
                present = [json.loads(store.get(name)) if store.check([name]) else None for name in names]
                if present != words and None not in present:
                    session, words = uuid.uuid4().hex, present
                    store.set("session", json.dumps([session, words]))
            elif store.check(["session"]):
                session, words = json.loads(store.get("session"))
                if len(words) != world_size or words[rank][0] != word:
                    session = ""
            if session:
                store.set(f"agreed/{session}/{rank}", "")
                if store.check([f"agreed/{session}/{other}" for other in range(world_size)]):
                    return session, words
            if time.monotonic() > deadline_s:
                raise ConnectionError(self._explain_absence())
            time.sleep(_LOOK_INTERVAL_S)

    def _explain_absence(self) -> str:
        world = self._world
        absent = [str(rank) for rank in range(world.world_size) if not self._memory.check([f"word/{rank}"])]
        who = f"rank{'s' if len(absent) > 1 else ''} {', '.join(absent)}" if absent else "some ranks"
        return (
            f"{who} of {world.world_size} did not come to {world.master_addr}:{world.master_port} within "
            f"{self._timeout_s:g} s (--connect-timeout-s)"
        )


def _open_store(world: ExternalRank, timeout_s: float) -> "tuple[Store, str]":
    """Open the store, and say at which address this rank sees it."""
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    place = (world.master_addr, world.master_port)
    timeout = timedelta(seconds=timeout_s)
    if world.rank == 0 and not world.served:
        # torch itself would listen at every address of this host.
        server = listen_at(*place, for_others=world.world_size > world.local_world_size)
        address = server.getsockname()[0]
        store = TCPStore(
            *place, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=server.detach()
        )
        return store, address
    # A plain connection first: torch's own attempts write pages to standard error for each that fails.
    with connect_to(*place, timeout_s, what=f"the master of this job ({world.source})") as probe:
        address = probe.getpeername()[0]
    return TCPStore(*place, is_master=False, timeout=timeout), address


def meet(context: RankContext, place: tuple[str, int], timeout_s: float) -> "Store":
    """Meet the ranks of other hosts at an address that rank 0 listens at; see `RankRendezvous` for others.

    Raises:
        ConnectionError: Rank 0 cannot be reached; the message names its host.
    """
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    choose_gloo_interface(place[0])
    timeout = timedelta(seconds=timeout_s)
    if context.is_main:
        descriptor = listen_at(*place, for_others=not is_local(place[0])).detach()
        return TCPStore(*place, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=descriptor)
    connect_to(*place, timeout_s, what="rank 0").close()
    return TCPStore(*place, is_master=False, timeout=timeout)


def _pick_address(seen: list[str]) -> str:
    """Choose among the master's address as the ranks see it: one on the network, if any rank sees one."""
    outside = [address for address in seen if not is_local(address)]
    return (outside or seen)[0]
