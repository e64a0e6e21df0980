"""Anyone may reach the port of node 0: what they send ends nothing, and costs little."""

import contextlib
import json
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mjtrain.config import LaunchConfig
from mjtrain.launcher import make_plan
from mjtrain.launcher.ipc.messages import HostConnection, MessageReader, encode_message
from mjtrain.launcher.ipc.messages import connect as connect_rank
from mjtrain.launcher.ipc.network import Wait, listen_at
from mjtrain.launcher.job.supervisor import Supervisor
from mjtrain.launcher.multinode import handshake
from mjtrain.launcher.multinode.coordinator import Coordinator
from mjtrain.launcher.multinode.handshake import Caller, Callers, introduce, prove
from mjtrain.launcher.multinode.node_rendezvous import describe_node
from mjtrain.launcher.multinode.transport import HostHandle
from mjtrain.launcher.planning.external import TOKEN_VARIABLE
from mjtrain.runtime.errors import RequestError
from support.machine import free_port, patience
from support.nodes import connect, listening

DEEP = b"[" * 100_000
GARBAGE = [
    b"[]\n",
    b"1\n",
    b"null\n",
    b'"text"\n',
    b"GET / HTTP/1.0\r\n\r\n",
    b"\xff\xfe\x00\n",
    DEEP + b"\n",
    b'{"a":' * 20_000 + b"\n",
    b"{}\n",
    b'{"kind": []}\n',
    b'{"kind": "hello"}\n',
    b'{"kind": "hello", "node_rank": Infinity, "host": "x", "nonce": "", "proof": ""}\n',
    b'{"kind": "hello", "node_rank": 1e999, "host": 1, "nonce": {}, "proof": "\\ud800"}\n',
    b'{"kind": "hello", "num_bytes": -40}\n',
    b'{"kind": "hello", "num_bytes": 1e3}\n',
    b'{"kind": "hello", "num_bytes": true}\n',
    b'{"kind": "hello", "num_bytes": 99999999999999}\n',
    b'{"kind": "hello", "num_bytes": ' + b"9" * 5000 + b"}\n",
    b"x" * 100_000,
]


@pytest.mark.parametrize(
    "garbage", [one for one in GARBAGE if b"hello" not in one or b"num_bytes" in one], ids=lambda one: str(one[:36])
)
def test_what_is_not_a_message_is_a_value_error(garbage: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        list(MessageReader(4096, max_body=1000).feed(garbage))


def test_a_line_that_never_ends_is_not_kept() -> None:
    reader = MessageReader()
    pieces = (message for _ in range(1000) for message in reader.feed(b"x" * (1 << 16)))
    with pytest.raises(ValueError, match="a line of more than"):
        list(pieces)


def test_messages_arrive_whole_in_pieces_of_any_size() -> None:
    messages = [("a", b"", {"n": 1}), ("b", b"\n" * 300, {}), ("c", b"{}\n", {"text": "\n"})]
    stream = b"".join(encode_message(*message) for message in messages)
    for size in (1, 2, 7, 100, len(stream)):
        reader = MessageReader(200, max_body=300)
        found = [one for at in range(0, len(stream), size) for one in reader.feed(stream[at : at + size])]
        assert [(message["kind"], body) for message, body in found] == [(kind, body) for kind, body, _ in messages]
        assert not reader.has_rest


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Change, repeat, cut or join some bytes."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        choice = rng.randrange(5)
        if choice == 0 and at < len(changed):
            changed[at] = rng.randrange(256)
        elif choice == 1:
            changed[at:at] = rng.choice((b"{", b"[" * 3000, b'"', b"\n", b"1e999", b"NaN", b"-1", b"null", b"\\ud800"))
        elif choice == 2:
            del changed[at : at + rng.randint(1, 9)]
        elif choice == 3:
            changed[at:at] = changed[rng.randrange(len(changed) + 1) :]
        else:
            changed[at:] = rng.randbytes(rng.randint(0, 40))
    return bytes(changed)


def mutate_message(rng: random.Random, message: dict[str, Any]) -> bytes:
    """Replace some fields by values of other types, and sometimes some bytes of the line."""
    values = (None, True, -1, 0, 2**80, 1.5, float("nan"), float("inf"), "", "x" * 40, "\ud800", [], [[]], {}, {"a": 1})
    changed = {name: rng.choice(values) if rng.random() < 0.3 else value for name, value in message.items()}
    if rng.random() < 0.2:
        changed.pop(rng.choice(list(changed)))
    line = json.dumps(changed).encode() + b"\n"
    return mutate(rng, line) if rng.random() < 0.3 else line


def test_any_bytes_are_messages_or_a_value_error() -> None:
    rng = random.Random(0)
    stream = b"".join(encode_message("output", b"text\n" * 3, {"stream": "stdout", "n": n}) for n in range(3))
    for _ in range(2000):
        reader = MessageReader(500, max_body=100)
        with contextlib.suppress(ValueError):
            for message, body in reader.feed(mutate(rng, stream)):
                assert isinstance(message["kind"], str)
                assert len(body) == message["num_bytes"] <= 100


def test_any_handshake_ends_only_its_own_connection() -> None:
    """Of a node that knows the token, or of anyone else; what is taken for a node has the right types."""
    rng, node = random.Random(0), describe_node(1, "x: 1", 2)
    server = listen_at("127.0.0.1", 0, for_others=False)
    place = server.getsockname()
    callers = Callers(server)
    for _ in range(300):
        with socket.create_connection(place) as stranger:
            callers.turn(1.0, lambda _: True)
            nonces = (json.loads(stranger.recv(4096))["nonce"], "0" * 32)
            hello = {"kind": "hello", "node_rank": 1, "host": "x", "nonce": nonces[1]}
            hello["proof"] = prove("node", 1, nonces)
            stranger.sendall(mutate_message(rng, hello) if rng.random() < 0.6 else json.dumps(hello).encode() + b"\n")
            callers.turn(0.02, lambda _: True)
            stranger.setblocking(False)
            with contextlib.suppress(OSError):
                stranger.sendall(mutate_message(rng, {"kind": "node", **node}))
                stranger.shutdown(socket.SHUT_WR)
            for caller in callers.turn(0.02, lambda _: True):
                assert isinstance(caller.node["request"], str)
                caller.close()
    callers.close()


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "a-secret")


def reach(port: int) -> socket.socket:
    """Connect to node 0, which may not listen yet."""
    deadline_s = time.monotonic() + patience(20.0)
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=patience(20.0))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def choose(_: dict[str, Any] | None) -> dict[str, Any]:
    return {"run_dir": "here"}


@pytest.mark.usefixtures("token")
def test_node_0_answers_strangers_with_silence() -> None:
    """Garbage of every kind, 80 silent connections and one that sends a byte now and then; then the node comes."""
    port = free_port()
    with listening(port) as server, contextlib.ExitStack() as stack:
        for garbage in GARBAGE:
            with reach(port) as stranger, contextlib.suppress(OSError):
                stranger.sendall(garbage)
                if garbage != GARBAGE[-1]:
                    assert stranger.makefile("rb").read().count(b"\n") == 1  # the question, and then the end
        slow = stack.enter_context(reach(port))
        over = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not over.wait(0.05):
                    slow.send(b"{")

        stack.callback(over.set)
        threading.Thread(target=drip, daemon=True).start()
        for _ in range(80):
            stack.enter_context(reach(port))
        client = connect(port)
        server().agree(choose)
        assert client.agree(choose)["run_dir"] == "here"
        client.close()


def test_a_handshake_has_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often bytes arrive."""
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.3)
    server = listen_at("127.0.0.1", 0, for_others=False)
    callers = Callers(server)
    with socket.create_connection(server.getsockname()) as slow:
        callers.turn(patience(5.0), lambda _: True)
        assert callers.busy
        begin_s = time.monotonic()
        while callers.busy:
            with contextlib.suppress(OSError):
                slow.send(b"{")
            callers.turn(0.02, lambda _: True)
            assert time.monotonic() - begin_s < patience(5.0)
    callers.close()


@pytest.mark.usefixtures("token")
def test_a_node_that_dies_before_its_welcome_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first welcome goes to a connection that is gone."""
    tell, gone = Caller.tell, []

    def tell_late(caller: Caller, kind: str, **fields: Any) -> None:
        if kind == "welcome" and not gone:
            gone.append(caller)
            caller.connection.shutdown(socket.SHUT_RDWR)
        tell(caller, kind, **fields)

    monkeypatch.setattr(Caller, "tell", tell_late)
    port = free_port()
    with listening(port) as server:
        client = connect(port)  # its first connection is the one that breaks
        server().agree(choose)
        assert client.agree(choose)["run_dir"] == "here"
        assert gone
        client.close()


@pytest.mark.usefixtures("token")
def test_another_command_at_a_restart_is_refused_and_the_job_waits(capfd: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    with listening(port) as server, ThreadPoolExecutor() as pool:
        first = connect(port)
        server().agree(choose)
        first.close()
        server()._clients[1].connection.lost = True
        waiting = pool.submit(server()._await_clients, [1], Wait(patience(30.0)))
        with pytest.raises(RequestError, match=r"node 1 .*asks for speed: 2\\x1b\[2J and node 0 for speed: 1"):
            connect(port, "speed: 2\x1b[2J")
        assert not waiting.done()
        again = connect(port)
        assert len(waiting.result(patience(30.0))) == 1
        assert again.agree(choose)["run_dir"] == "here"
        again.close()
    said = capfd.readouterr().err
    assert said.startswith("refused node 1 on host ")
    assert said.strip().isprintable()


@pytest.mark.usefixtures("token")
def test_a_node_tells_a_stranger_nothing() -> None:
    """One that answers in the place of node 0 without the token, or that sends a node's own proof back."""
    for answer in ("0" * 64, None):
        here, there = socket.socketpair()
        with here, there, ThreadPoolExecutor() as pool:
            there.sendall(encode_message("who", b"", {"nonce": "1" * 32}))
            node = pool.submit(introduce, here, 1, describe_node(1, "a secret plan", 2))
            hello = json.loads(there.recv(4096))
            assert "packages" not in hello
            there.sendall(encode_message("proof", b"", {"proof": answer or hello["proof"]}))
            with pytest.raises(ValueError, match="does not know the token"):
                node.result(patience(10.0))
            there.setblocking(False)
            with pytest.raises(BlockingIOError):
                there.recv(4096)


def test_any_message_of_a_rank_ends_only_its_own_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a damaged rank sends is handled or counts as the end of the rank; the supervisor does not raise."""
    monkeypatch.setattr("mjtrain.launcher.ipc.signals._TURN_S", 0.0)
    rng = random.Random(0)
    hello = encode_message("hello", b"", {"rank": 1, "pid": 1 << 30, "host": "x"})
    whole: list[dict[str, Any]] = [
        {"kind": "hello", "rank": 0, "pid": 1 << 30, "host": "x"},
        {"kind": "beat", "progress": 1, "phase": "rollout", "waits": False, "overdue": ""},
        {"kind": "injected", "fault": "crash", "phase": "rollout"},
        {"kind": "done", "paused": False},
        {"kind": "exit", "pid": 5, "exit_code": 1},
        {"kind": "failed", "traceback": "x", "summary": "x", "phase": "update", "retry": True}
        | {"complaint": False, "time_s": 1.0},
    ]
    incomplete = [
        {name: message[name] for name in message if name != left_out} for message in whole for left_out in message
    ]
    sent = [json.dumps(message).encode() + b"\n" for message in incomplete]
    sent += [b'{"kind": "signalled", "signum": 9}\n', b'{"kind": "agent", "pid": 7, "rank_pids": [-1]}\n', hello]
    supervisor = Supervisor(make_plan(LaunchConfig(gpu_ids=None, num_workers=2)), tmp_path, None)
    lost = []
    monkeypatch.setattr(supervisor, "on_hang_up", lambda state: lost.append(state))
    server, loop = supervisor._ranks, supervisor._loop
    with loop, server.listen():
        for number in range(200):
            server.states.clear()
            data = sent[number] if number < len(sent) else mutate_message(rng, rng.choice(whole))
            with connect_rank(tmp_path) as rank:
                rank.sendall(hello + data if rng.random() < 0.7 or number < len(sent) else data)
                loop.turn()
                loop.turn()
                if number < len(sent):
                    assert len(lost) == number + 1, data
            loop.turn()
            assert len(lost) == number + 1, data
        server.close(patience(5.0))


def test_hosts_that_send_garbage_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the handshake: each ends its own connection, and the job with a cause instead of a traceback."""
    monkeypatch.setattr("mjtrain.launcher.multinode.coordinator.SETTLE_S", 0.1)
    failure = {"summary": 5, "files": [], "detail": []}
    ended: dict[str, Any] = {"kind": "result", "failure": None, "stop_signal": None, "finished": True}
    ended |= {"not_saved_s": None, "paused": False}
    kinds: list[dict[str, Any]] = [
        {"kind": "port", "port": "no number"},
        {"kind": "signalled", "signum": "x"},
        {"kind": "signalled", "signum": 10**30},
        {"kind": "injected", "fault": {}},
        {"kind": "result"},
        {**ended, "failure": failure},
        {**ended, "failure": []},
        {**ended, "failure": {"summary": "x", "files": 3}},
        {**ended, "stop_signal": "x"},
        {**ended, "not_saved_s": "x"},
    ]
    sent = [json.dumps(message).encode() + b"\n" for message in kinds]
    sent += [one for one in GARBAGE[:9] if b"\r" not in one]
    hosts, ends = [], []
    for index, data in enumerate(sent):
        here, there = socket.socketpair()
        there.sendall(data[: 1 << 16] + b"\n")
        descriptor = here.detach()
        connection = HostConnection(descriptor, descriptor + 0)
        hosts.append(HostHandle(host=f"h{index}", connection=connection, trusted=False))
        ends.append(there)
    plan = make_plan(LaunchConfig(gpu_ids=None))
    plan = replace(plan, start_timeout_s=patience(20.0), stop_grace_s=1.0, host_timeout_s=patience(60.0))
    result = Coordinator(plan, hosts).run(lambda *_: ({}, b""))
    assert result.failure is not None
    assert "closed its connection" in result.failure.summary
    assert len(result.lost_nodes) == len(sent)
    for end in ends:
        end.close()
