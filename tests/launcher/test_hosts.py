"""What is decided about several hosts, without any: words for what went wrong, the cause, and what travels."""

import socket
import threading

import pytest

from mjtrain.errors import RequestError
from mjtrain.launcher.failure import Failure
from mjtrain.launcher.ipc.messages import encode_message
from mjtrain.launcher.ipc.network import connect_to
from mjtrain.launcher.multinode import node_rendezvous as call
from mjtrain.launcher.multinode.coordinator import pick_cause
from mjtrain.launcher.multinode.probe import select_environ
from mjtrain.launcher.multinode.transport import explain_status, is_this_machine
from mjtrain.launcher.planning.external import ExternalNode


@pytest.mark.parametrize(
    ("status", "said", "words"),
    [
        (255, ["ssh: Could not resolve hostname n1: Name or service not known"], "the name does not resolve"),
        (255, ["No ED25519 host key is known for n1", "Host key verification failed."], "is not known"),
        (255, ["REMOTE HOST IDENTIFICATION HAS CHANGED!", "Host key verification failed."], "has changed"),
        (255, ["root@n1: Permission denied (publickey)."], "SSH fails: root@n1: Permission denied (publickey)."),
        (255, [], "was killed, or the connection to it broke"),
        (-9, [], "was killed by signal 9"),
        (137, [], "was killed by signal 9"),
        (91, [], "the working directory"),
        (92, [], "the same environment must be at the same path"),
        (1, ["ModuleNotFoundError: No module named 'mjtrain'"], "status 1: ModuleNotFoundError"),
    ],
)
def test_the_end_of_a_line_in_words(status: int, said: list[str], words: str) -> None:
    assert words in explain_status(status, said)


def test_a_process_that_died_is_the_cause_and_not_the_complaint_about_it() -> None:
    complaint, death = Failure(summary="connection closed by peer"), Failure(summary="was killed", signal=9)
    assert pick_cause([complaint, death]) is death
    assert pick_cause([complaint, Failure(summary="later")]) is complaint


def test_which_variables_travel() -> None:
    environ = {"NCCL_DEBUG": "1", "WANDB_API_KEY": "s", "HOME": "/h", "MJTRAIN_JOB": "j", "MINE": "m"}
    assert select_environ(environ) == {"NCCL_DEBUG": "1", "WANDB_API_KEY": "s"}
    assert select_environ(environ, ("MI*",)) == {"NCCL_DEBUG": "1", "WANDB_API_KEY": "s", "MINE": "m"}


def test_this_machine_by_its_names() -> None:
    assert is_this_machine("localhost", None)
    assert is_this_machine(socket.gethostname(), None)
    assert not is_this_machine("no-such-host.invalid", None)


def test_nodes_must_agree() -> None:
    mine = call.describe_node(2, "speed: 1\nmass: 2")
    assert call.find_difference(mine, call.describe_node(2, "speed: 1\nmass: 2")) is None
    assert "asks for mass: 3 and node 0 for mass: 2" in str(
        call.find_difference(mine, call.describe_node(2, "speed: 1\nmass: 3"))
    )
    other = {**mine, "packages": {**mine["packages"], "torch": "1.0"}}
    assert "has torch 1.0 and node 0 has" in str(call.find_difference(mine, other))


def test_callers_hear_why_node_0_cannot_begin() -> None:
    for error, heard in ((RequestError("--resume x: no"), RequestError), (OSError("disk full"), ConnectionError)):
        gate, caller = meet_at_the_gate()

        def fail(error: Exception = error) -> dict[str, str]:
            raise error

        with pytest.raises(type(error)):
            gate.agree(fail)
        with pytest.raises(heard, match=str(error)):
            caller.agree(dict)


def meet_at_the_gate() -> tuple[call.NodeRendezvousServer, call.NodeRendezvousClient]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    world = {"num_nodes": 2, "master_addr": "127.0.0.1", "master_port": port}
    gates: list[call.NodeRendezvousServer] = []
    waiting = threading.Thread(
        target=lambda: gates.append(call.NodeRendezvousServer(ExternalNode(node_rank=0, **world), 1, "", 30.0))
    )
    waiting.start()
    caller = call.NodeRendezvousClient(ExternalNode(node_rank=1, **world), 1, "", 30.0)
    waiting.join(30.0)
    return gates[0], caller


def test_a_stranger_without_the_token_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that talks nonsense, one with another token, and then the node itself."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setenv(call.TOKEN_VARIABLE, "a-secret")
    world = {"num_nodes": 2, "master_addr": "127.0.0.1", "master_port": port}
    gates: list[call.NodeRendezvousServer] = []
    waiting = threading.Thread(
        target=lambda: gates.append(call.NodeRendezvousServer(ExternalNode(node_rank=0, **world), 1, "", 30.0))
    )
    waiting.start()
    nonsense = connect_to("127.0.0.1", port, 10.0, what="the gate")
    nonsense.sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert nonsense.makefile("rb").read().count(b"\n") == 1  # the question, and then it hangs up
    nonsense.close()
    stranger = connect_to("127.0.0.1", port, 10.0, what="the gate")
    call._receive(stranger)
    hello = {"node_rank": 1, "host": "x", "proof": "wrong", "node": call.describe_node(1, "")}
    stranger.sendall(encode_message("hello", b"", hello))
    assert stranger.recv(100) == b""
    stranger.close()
    caller = call.NodeRendezvousClient(ExternalNode(node_rank=1, **world), 1, "", 30.0)
    waiting.join(30.0)
    (gate,) = gates
    told = threading.Thread(target=lambda: gate.agree(lambda: {"run_dir": "here"}))
    told.start()
    assert caller.agree(dict)["run_dir"] == "here"
    told.join(10.0)
    gate.close()
    with pytest.raises(ConnectionError, match="node 0 at 127"):
        caller.wait_for("start")
