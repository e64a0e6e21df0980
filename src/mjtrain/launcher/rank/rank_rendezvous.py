"""How ranks that torchrun, srun or skrl's launcher has started find each other: a store at the master's address.

torchrun's store outlives its ranks, so that after a restart it still has what earlier ranks left there. The ranks that
are present therefore agree on a session first, and everything that belongs to it has keys that begin with its name.
"""

import contextlib
import hashlib
import json
import os
import socket
import time
import traceback
import uuid
from collections import defaultdict
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from mjtrain.launcher.base import Decide, Decision, LaunchRequest, find_other_line
from mjtrain.launcher.ipc.network import Wait, choose_gloo_interface, connect_to, is_local, listen_at
from mjtrain.launcher.planning.external import ExternalRank
from mjtrain.launcher.rank.in_process import run_in_process
from mjtrain.runtime import heartbeat
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.processes import die_with_parent
from mjtrain.runtime.rank import RankContext

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

_LOOK_INTERVAL_S = 0.05

_PEER_WAIT_S = 5.0
"""How long rank 0 stays for the other ranks to read why it fails."""

_AGENT_S = 15.0
"""How long a rank that has stopped because others were asked to waits for torchrun to ask it too."""

COMPLAINT_DELAY_S = 3.0
"""A rank that lost the others waits this long before it reports so: the rank that failed first gets to say why."""

_count = 0
"""Rendezvous of this process so far: what a script trains first, second and so on are different runs."""


class RankRendezvous:
    """One rank's end: all ranks of the job are present."""

    def __init__(self, external: ExternalRank, request: str, timeout_s: float) -> None:
        """Wait for the other ranks.

        Args:
            request: What to do, in lines of text that must be the same on every rank; `agree` compares them.

        Raises:
            ConnectionError: The master cannot be reached, or ranks do not connect; the message names them.
            RequestError: Ranks were started with different numbers of ranks, or two with the same rank.
        """
        global _count
        from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

        self._external = external
        self._timeout_s = timeout_s
        self._request = request
        root, self._seen = _open_store(
            (external.master_addr, external.master_port),
            timeout_s,
            serves=external.rank == 0 and not external.served,
            for_others=external.world_size > external.local_world_size,
            what=f"the master of this job ({external.source})",
            announces=external.local_rank == 0,
        )
        self._memory = PrefixStore(f"mjtrain/{_count}", root)
        _count += 1
        session, entries = self._agree_on_session()
        self._hosts = [entry[1] for entry in entries]
        # The address under which other hosts see the master, whatever its own name resolves to on it: one on the
        # network, if any rank sees one.
        seen = [entry[2] for entry in entries]
        self._master_address = next((address for address in seen if not is_local(address)), seen[0])
        self._store = PrefixStore(session, self._memory)
        self._digests = [entry[4] for entry in entries]
        if self._digests[external.rank] != self._digests[0]:
            self._store.set(f"request/{external.rank}", request)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self._external.rank == 0

    def agree(self, decide: Decide) -> Decision:
        """Return what rank 0 chooses."""
        if self.leads:
            try:
                self._check_requests()
                before = json.loads(self._memory.get("choice")) if self._memory.check(["choice"]) else None
                choice = decide(before)
            except Exception as error:
                is_wrong = isinstance(error, RequestError)
                self._store.set("choice", json.dumps({"error": str(error), "is_wrong": is_wrong}))
                others = [f"heard/{rank}" for rank in range(1, self._external.world_size)]
                with contextlib.suppress(RuntimeError):  # the store may go with this process; a rank may be gone
                    self._store.wait(others, timedelta(seconds=_PEER_WAIT_S))
                raise
            self._memory.set("choice", json.dumps(choice))
            self._store.set("choice", json.dumps(choice))
            return choice
        self._store.wait(["choice"], timedelta(seconds=self._timeout_s))
        choice = json.loads(self._store.get("choice"))
        if "error" in choice:
            self._store.set(f"heard/{self._external.rank}", "")
            if choice["is_wrong"]:
                raise RequestError(choice["error"])
            raise ConnectionError(f"rank 0 could not begin: {choice['error']}")
        return choice

    def run(self, request: LaunchRequest) -> Any:
        """Run this rank in the calling process."""
        if self._external.elastic:
            # An agent that is killed leaves its ranks behind; no other agent would know of them.
            die_with_parent(os.getppid())
        from mjtrain.runtime.worker import same_environ  # torch, which a launcher can do without

        try:
            with same_environ():
                # Before torch opens a connection.
                os.environ.update(request.plan.environ)
                choose_gloo_interface(self._master_address)
                value = run_in_process(request, self._store, self._explain_loss)
        except RequestError:
            raise
        except Exception as error:
            if "TORCHELASTIC_ERROR_FILE" in os.environ:  # from which torchrun takes the cause for its summary
                from torch.distributed.elastic.multiprocessing.errors import get_error_handler

                get_error_handler().record_exception(error)
            raise
        if self._external.elastic and heartbeat.current.stop_agreed:
            # Only another rank was asked so far. A node joins, perhaps: torchrun is about to end this rank as well, and
            # would take it for one that is done, and not start it again, if it ended by itself first.
            time.sleep(_AGENT_S)
        return value

    def _check_requests(self) -> None:
        """Raise a RequestError on rank 0 if another rank has another request."""
        for rank, (host, digest) in enumerate(zip(self._hosts, self._digests, strict=True)):
            if digest != self._digests[0]:
                theirs = self._store.get(f"request/{rank}").decode()
                raise RequestError(f"rank {rank} on host {host} {find_other_line(theirs, self._request, 'rank 0')}")

    def close(self) -> None:
        """Do nothing: the store ends with the process that serves it."""

    def _explain_loss(self, error: BaseException) -> str:
        """Say which ranks there were, if an exception only says that they do not answer; after a delay."""
        if not is_complaint(error):
            return ""
        time.sleep(COMPLAINT_DELAY_S)
        by_host = defaultdict(list)
        for rank, host in enumerate(self._hosts):
            by_host[host].append(str(rank))
        there = "; ".join(
            f"{host} has {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranks)}" for host, ranks in by_host.items()
        )
        return f" (lost other ranks: {there})"

    def _agree_on_session(self) -> tuple[str, list[Any]]:
        """Find out which ranks are present now, whatever earlier ranks have left in the store.

        Every rank leaves a fresh token under its number. Rank 0 publishes a session with the tokens it sees, and again
        when one changes. A rank that finds its own token in it agrees. A session on which all ranks agree is of living
        ranks only.

        Returns:
            The session's name, and of every rank its token, its host, the address at which it sees the master, its
            world size and the digest of its request.
        """
        rank, world_size, store = self._external.rank, self._external.world_size, self._memory
        token = uuid.uuid4().hex
        digest = hashlib.sha256(self._request.encode()).hexdigest()
        store.set(f"token/{rank}", json.dumps([token, socket.gethostname(), self._seen, world_size, digest]))
        session = ""
        entries: list[Any] = []
        wait = Wait(self._timeout_s)
        while True:
            if not self._external.served:  # torchrun's store may still hold tokens of earlier ranks
                self._check_place(token)
            rival = ""
            if self.leads:
                present = self._read_tokens(range(world_size))
                if present != entries and None not in present:
                    session, entries = uuid.uuid4().hex, present
                    store.set("session", json.dumps([session, entries]))
            elif store.check(["session"]):
                session, entries = json.loads(store.get("session"))
                if len(entries) != world_size:
                    session = ""
                elif entries[rank][0] != token:
                    session, rival = "", "" if self._external.served else entries[rank][1]
            if session:
                store.set(f"agreed/{session}/{rank}", "")
                if store.check([f"agreed/{session}/{other}" for other in range(world_size)]):
                    return session, entries
            # One rank says what all of them wait for; while that one is absent, one of each host does.
            is_first = self._external.local_rank == 0 and not store.check(["token/0"])
            if self.leads or is_first or rival or wait.left_s == 0:
                wait.check(partial(self._explain_absence, rival))
            time.sleep(_LOOK_INTERVAL_S)

    def _check_place(self, token: str) -> None:
        """Raise a RequestError if a rank expects another number of ranks, or another process is the same rank."""
        rank, world_size = self._external.rank, self._external.world_size
        if self._memory.check(["refusal"]):
            raise RequestError(self._memory.get("refusal").decode())
        ranks = range(world_size) if self.leads else (0, rank)
        for other, entry in zip(ranks, self._read_tokens(ranks), strict=True):
            if entry is not None and entry[3] != world_size:
                refusal = (
                    f"rank {rank} on host {socket.gethostname()} expects {world_size} ranks (WORLD_SIZE) and rank "
                    f"{other} on host {entry[1]} expects {entry[3]}: start all of them with the same number"
                )
                if self.leads:
                    self._memory.set("refusal", refusal)
                    time.sleep(_PEER_WAIT_S)  # the store ends with this process
                raise RequestError(refusal)
            if other == rank and entry is not None and entry[0] != token:
                raise RequestError(
                    f"rank {rank}: another process, on host {entry[1]}, has the same rank (RANK); start each rank of a "
                    "job once"
                )

    def _read_tokens(self, ranks: Iterable[int]) -> list[Any]:
        """Return the entries that ranks wrote to the store; None for one that has not connected."""
        names = [f"token/{rank}" for rank in ranks]
        return [json.loads(self._memory.get(name)) if self._memory.check([name]) else None for name in names]

    def _explain_absence(self, rival: str, within: str) -> str:
        external = self._external
        if rival:
            return (
                f"rank 0 did not accept this process {within}: a process on host {rival} has joined this job as rank "
                f"{external.rank}; start each rank once, and restart all of them after a failure"
            )
        tokens = self._read_tokens(range(external.world_size))
        absent = [str(rank) for rank, token in enumerate(tokens) if token is None]
        ranks = f"rank{'s' if len(absent) > 1 else ''} {', '.join(absent)}" if absent else "some ranks"
        place = f"{external.master_addr}:{external.master_port}"
        return f"{ranks} of {external.world_size} did not connect to {place} {within}"


def _open_store(
    master: tuple[str, int], timeout_s: float, *, serves: bool, for_others: bool, what: str, announces: bool = False
) -> "tuple[Store, str]":
    """Open a store, which this rank serves or another one; return it with the address at which this rank sees it."""
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    timeout = timedelta(seconds=timeout_s)
    if serves:
        # torch itself would listen at every address of this host.
        server = listen_at(*master, for_others=for_others)
        address = server.getsockname()[0]
        store = TCPStore(
            *master, is_master=True, wait_for_workers=False, timeout=timeout, master_listen_fd=server.detach()
        )
        return store, address
    # A plain connection first: torch's own attempts write pages to standard error for each that fails.
    with connect_to(*master, Wait(timeout_s, announces=announces), what=what) as probe:
        try:
            address = probe.getpeername()[0]
        except OSError as error:
            raise ConnectionError(f"{what} at {master[0]}:{master[1]} has closed the connection") from error
    return TCPStore(*master, is_master=False, timeout=timeout), address


def open_job_store(context: RankContext, master: tuple[str, int], timeout_s: float) -> "Store":
    """Open the store of a job whose ranks mjtrain has started on several hosts; rank 0 serves it."""
    choose_gloo_interface(master[0])
    for_others = not is_local(master[0])
    store, _ = _open_store(master, timeout_s, serves=context.is_main, for_others=for_others, what="rank 0")
    return store


def is_complaint(error: BaseException) -> bool:
    """Whether an exception only says that other ranks do not answer: a RuntimeError raised inside torch.distributed.

    Without a process group, as after destroy_process_group(), torch raises others.
    """
    return isinstance(error, RuntimeError) and any(
        "/torch/distributed/" in frame.filename for frame in traceback.extract_tb(error.__traceback__)[-3:]
    )
