"""The connection between hosts: heartbeats come whatever the sender's loop waits for."""

import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mjtrain.launcher.ipc import messages
from mjtrain.launcher.ipc.messages import HostConnection, encode_message
from support.machine import many_open_files, patience, wait_until


def make_pair() -> tuple[HostConnection, HostConnection]:
    ends = socket.socketpair()
    with ends[0], ends[1]:
        one, other = (HostConnection(os.dup(end.fileno()), os.dup(end.fileno())) for end in ends)
    return one, other


def hear(connection: HostConnection) -> str | None:
    if select.select([connection], [], [], 0.05)[0]:
        connection.receive()
    return connection.explain_silence()


def test_a_host_whose_loop_waits_for_a_file_sends_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a longer limit than one that sends nothing, and another message."""
    monkeypatch.setattr(messages, "BEAT_INTERVAL_S", 0.05)
    monkeypatch.setattr(messages, "STALL_TIMEOUT_S", 0.3)
    waiting, hearing = make_pair()
    words = "its launcher has waited for 0.3 s, most likely for a file system"
    wait_until(lambda: hear(hearing) == words, "the other end says that its loop does not turn")

    def turn() -> bool:
        waiting.beat()
        return hear(hearing) is None

    wait_until(turn, "the other end says that its loop turns again")
    waiting.close()
    hearing.close()


@contextmanager
def connected(*, skips_noise: bool = False) -> Iterator[tuple[HostConnection, socket.socket]]:
    """Yield a connection, and the socket at its other end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = HostConnection(os.dup(ours.fileno()), os.dup(ours.fileno()), skips_noise=skips_noise)
        yield connection, theirs
        connection.close()


def test_a_host_that_sends_nothing_is_lost() -> None:
    with connected() as (connection, _):
        connection.timeout_s = 0.1
        time.sleep(0.2)
        words = "no message from this host for 0.1 s (--host-timeout-s): it is down, or the network is"
        assert connection.explain_silence("from this host") == words


def test_connections_may_have_descriptors_that_select_does_not_take() -> None:
    with many_open_files(), connected() as (connection, theirs):
        assert connection.fileno() >= 1024
        theirs.sendall(encode_message("over", b"", {}))
        assert connection.await_message(patience(5.0)) == ({"kind": "over", "num_bytes": 0}, b"")


def test_what_a_shell_prints_before_the_agent_is_skipped() -> None:
    """A start file of a shell may greet its user; the messages come after that, in any pieces."""
    with connected(skips_noise=True) as (connection, theirs):
        arrived = []
        for byte in b"Welcome {to} lab-3!\n$ " + encode_message("facts", b"", {"python": "3"}):
            theirs.sendall(bytes([byte]))
            arrived += connection.receive()
        assert [message["kind"] for message, _ in arrived] == ["facts"]


def test_a_program_that_is_no_agent_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(skips_noise=True) as (connection, theirs):
        theirs.sendall(b"x" * 10_000)
        monkeypatch.setattr(messages, "_MAX_BEFORE", 100)
        with pytest.raises(ValueError, match="not mjtrain's"):
            connection.receive()
