"""What is decided about several hosts, without any: words for what went wrong, the cause, and what travels."""

import contextlib
import os
import pickle
import re
import select
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mjtrain.config import LaunchConfig
from mjtrain.launcher import make_plan, rendezvous, run_plan
from mjtrain.launcher.base import LaunchRequest
from mjtrain.launcher.failure import Failure
from mjtrain.launcher.ipc.messages import encode_message
from mjtrain.launcher.ipc.network import Wait, connect_to, listen_at
from mjtrain.launcher.job.spawner import Job
from mjtrain.launcher.multinode import node_rendezvous
from mjtrain.launcher.multinode.coordinator import Coordinator, pick_cause
from mjtrain.launcher.multinode.handshake import receive
from mjtrain.launcher.multinode.node_agent import find_free_port
from mjtrain.launcher.multinode.probe import _find_address, call_on_hosts, probe_hosts, select_environ
from mjtrain.launcher.multinode.transport import explain_status, is_this_machine, open_handle
from mjtrain.launcher.planning.external import TOKEN_VARIABLE
from mjtrain.launcher.rank.spawned import pickle_with_code
from mjtrain.runtime.errors import RequestError
from mjtrain.runtime.rank import RankContext
from support.machine import free_port, patience, wait_until
from support.nodes import connect, listening, node_pair


@pytest.mark.parametrize(
    ("status", "said", "words"),
    [
        (255, ["ssh: Could not resolve hostname n1: Name or service not known"], "the name does not resolve"),
        (255, ["No ED25519 host key is known for n1", "Host key verification failed."], "is not known"),
        (255, ["REMOTE HOST IDENTIFICATION HAS CHANGED!", "Host key verification failed."], "has changed"),
        (255, ["root@n1: Permission denied (publickey)."], "SSH failed: root@n1: Permission denied (publickey)."),
        (255, [], "was killed, or the connection to it broke"),
        (-9, [], "was killed by signal 9"),
        (137, [], "was killed by signal 9"),
        (91, [], "the working directory"),
        (92, [], "the same environment must be at the same path"),
        (1, ["ModuleNotFoundError: No module named 'mjtrain'"], "status 1: ModuleNotFoundError"),
    ],
)
def test_the_end_of_a_connection_in_words(status: int, said: list[str], words: str) -> None:
    assert words in explain_status(status, said)


def test_a_process_that_died_is_the_cause_and_not_the_complaint_about_it() -> None:
    complaint, death = Failure(summary="connection closed by peer"), Failure(summary="was killed", signal=9)
    assert pick_cause([complaint, death]) is death
    assert pick_cause([complaint, Failure(summary="later")]) is complaint
    own = Failure(summary="the arm fell off", rank=1)
    assert pick_cause([Failure(summary="all ranks wait for others", rank=0, is_attributed=False), own]) is own


def test_which_variables_travel() -> None:
    environ = {"NCCL_DEBUG": "1", "WANDB_API_KEY": "s", "HOME": "/h", "MJTRAIN_JOB": "j", "MINE": "m"}
    assert select_environ(environ) == {"NCCL_DEBUG": "1", "WANDB_API_KEY": "s"}
    assert select_environ(environ, ("MI*",)) == {"NCCL_DEBUG": "1", "WANDB_API_KEY": "s", "MINE": "m"}


def test_this_machine_by_its_names() -> None:
    assert is_this_machine("localhost", None)
    assert is_this_machine(socket.gethostname(), None)
    assert not is_this_machine("no-such-host.invalid", None)


def test_a_long_wait_is_announced_once(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("mjtrain.launcher.ipc.network._NOTICE_S", 0.1)
    reason = "cannot be reached within {} s{}: the name does not resolve"
    with pytest.raises(ConnectionError, match=re.escape(reason.format(1.5, " (--connect-timeout-s)"))):
        connect_to("no-such-host.invalid", 5, Wait(1.5), what="node 0")
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert said.endswith(reason.format(0.1, "") + "; waiting for at most 1.5 s (--connect-timeout-s)\n")


def test_nodes_must_agree() -> None:
    mine = node_rendezvous.describe_node(2, "speed: 1\nmass: 2", 2)
    assert node_rendezvous.find_difference(mine, node_rendezvous.describe_node(2, "speed: 1\nmass: 2", 2)) is None
    assert "asks for mass: 3 and node 0 for mass: 2" in str(
        node_rendezvous.find_difference(mine, node_rendezvous.describe_node(2, "speed: 1\nmass: 3", 2))
    )
    other = {**mine, "packages": {**mine["packages"], "torch": "1.0"}}
    assert "has torch 1.0 and node 0 has" in str(node_rendezvous.find_difference(mine, other))


def test_clients_get_the_reason_why_node_0_cannot_begin() -> None:
    for error, raised in ((RequestError("--resume x: no"), RequestError), (OSError("disk full"), ConnectionError)):
        with node_pair() as (server, client):

            def fail(_: dict[str, Any] | None, error: Exception = error) -> dict[str, Any]:
                raise error

            with pytest.raises(type(error)):
                server.agree(fail)
            with pytest.raises(raised, match=str(error)):
                client.agree(fail)


def choose_here(previous: dict[str, Any] | None) -> dict[str, Any]:
    return {"run_dir": "here", "previous": previous}


def test_alone_agrees_with_itself() -> None:
    plan = make_plan(LaunchConfig(gpu_ids=None))
    alone = rendezvous(plan)
    assert alone.leads
    assert alone.agree(choose_here) == {"run_dir": "here", "previous": None}
    assert run_plan(LaunchRequest(plan=plan, fn=lambda context: context.rank), alone) == 0


def test_nodes_take_what_node_0_chooses() -> None:
    with node_pair() as (server, client):
        assert (server.leads, client.leads) == (True, False)
        assert server.agree(choose_here)["run_dir"] == "here"
        assert client.agree(choose_here)["run_dir"] == "here"


def test_a_stranger_without_the_token_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that talks nonsense, one with another token, and then the node itself."""
    port = free_port()
    monkeypatch.setenv(TOKEN_VARIABLE, "a-secret")
    with listening(port) as server:
        nonsense = connect_to("127.0.0.1", port, Wait(patience(10.0)), what="node 0")
        nonsense.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert nonsense.makefile("rb").read().count(b"\n") == 1  # the challenge, and then the end
        nonsense.close()
        stranger = connect_to("127.0.0.1", port, Wait(patience(10.0)), what="node 0")
        receive(stranger, time.monotonic() + patience(10.0))
        hello = {"node_rank": 1, "host": "x", "nonce": "0" * 32, "proof": "wrong"}
        stranger.sendall(encode_message("hello", b"", hello))
        assert stranger.recv(100) == b""
        stranger.close()
        client = connect(port)
        server().agree(choose_here)
        assert client.agree(choose_here)["run_dir"] == "here"
    request = LaunchRequest(plan=make_plan(LaunchConfig(gpu_ids=None)), fn=choose_here)
    with pytest.raises(ConnectionError, match="node 0 of this job has ended it before it began"):
        client.run(request)
    with pytest.raises(ConnectionError, match=r"node 0 at 127.* closed its connection"):
        client.run(request)
    client.close()
    client.close()


def test_the_port_of_rank_0_is_none_that_connections_get() -> None:
    """Some seconds pass until rank 0 listens there."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {find_free_port() for _ in range(5)}
    assert len(ports) > 1
    assert all(1024 <= port < first for port in ports)


def test_a_port_that_is_taken_is_told_with_its_holder() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        words = rf"cannot listen at 127\.0\.0\.1:{port}, .*: Address already in use.*, held by process {os.getpid()} \("
        with pytest.raises(ConnectionError, match=words):
            listen_at("127.0.0.1", port, for_others=True)


@pytest.mark.process
def test_a_function_is_called_on_hosts() -> None:
    """What it yields comes one by one; that it fails is told with the last line of its error."""
    values: list[tuple[str, Any]] = []
    failed: dict[str, str] = {}
    for folder in ("/", 5):
        call_on_hosts(
            "mjtrain.launcher.multinode.node_agent:describe_host",
            {"localhost": {"folder": folder, "with_gpus": False, "names": ["localhost"]}},
            LaunchConfig(),
            lambda host, value: values.append((host, value["resolved"])),
            failed.__setitem__,
            timeout_s=patience(30),
        )
    assert values == [("localhost", {"localhost": "127.0.0.1"})]
    assert failed["localhost"].startswith("mjtrain's agent on this host ended with status 1: TypeError: ")


def test_messages_that_arrive_together_are_all_heard() -> None:
    """Node 0 may say the choice, the start and the end before a slow node listens again."""
    with node_pair() as (server, client):
        server.agree(choose_here)
        server._tell("start", restarts=0)
        server._tell("over")
        server._clients[1].connection.flush(patience(5.0))
        time.sleep(0.1)  # for the bytes on their way
        assert client.agree(choose_here)["run_dir"] == "here"
        assert client._wait_for("start", "over")["kind"] == "start"
        assert client._wait_for("start", "over")["kind"] == "over"


def test_a_node_that_was_given_up_hears_of_it() -> None:
    with node_pair() as (server, client):
        given_up = server._clients[1]
        given_up.connection.lost = True
        assert server._await_clients([], Wait(1.0)) == []
        with pytest.raises(ConnectionError, match="closed its connection"):
            client._wait_for("start", "over")
        assert given_up.errors.closed


def test_a_node_that_calls_again_replaces_the_one_that_was_lost() -> None:
    port = free_port()
    with listening(port) as server, contextlib.closing(connect(port)) as first:
        server()._clients[1].connection.lost = True
        with ThreadPoolExecutor() as pool:
            calling = pool.submit(connect, port)
            while not calling.done():
                server()._accept(0.1)
        with contextlib.closing(calling.result()) as second:
            server()._await_clients([1], Wait(patience(5.0)))
            with pytest.raises(ConnectionError, match="closed its connection"):
                first._wait_for("start")
            server()._tell("start", restarts=1)
            assert second._wait_for("start")["restarts"] == 1


def sleep_long(_: RankContext) -> None:
    time.sleep(600)


def test_a_node_leaves_the_variables_of_its_process_as_they_are() -> None:
    before = dict(os.environ)
    with node_pair() as (server, client):
        server._tell("over")
        with pytest.raises(ConnectionError, match="before it began"):
            client.run(LaunchRequest(plan=make_plan(LaunchConfig(gpu_ids=None)), fn=sleep_long))
    assert dict(os.environ) == before


def test_a_stop_behind_the_start_is_not_lost() -> None:
    """The agent reads both at once where it was still importing."""
    plan = make_plan(LaunchConfig(gpu_ids=None))
    job = Job(plan=plan, payload=pickle_with_code((sleep_long, ())), preload=())
    environ = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with contextlib.closing(open_handle("localhost", ssh_config_file=None, transport="ssh")) as handle:
        handle.connection.send("start", pickle.dumps(job), environ=environ, host="localhost", log_dir=None)
        handle.connection.send("stop", signum=signal.SIGINT)
        heard: list[str] = []

        def has_ended() -> bool:
            handle.connection.beat()
            if select.select([handle.connection], [], [], 0.0)[0]:
                heard.extend(message["kind"] for message, _ in handle.connection.receive())
            return "gone" in heard or handle.connection.lost

        wait_until(has_ended, "the agent has ended its rank", 20.0)
        assert "gone" in heard, handle.explain_end()


def test_ssh_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that has been started already does not stay."""
    monkeypatch.setenv("PATH", "/nowhere")
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text().split()
    words = r"--hostnames: ssh, which reaches elsewhere, cannot be started .*No such file"
    with pytest.raises(RequestError, match=words):
        probe_hosts(["localhost", "elsewhere"], LaunchConfig(hostnames=("localhost", "elsewhere")), None)
    assert set(children.read_text().split()) <= set(before)


@pytest.mark.process
def test_a_stop_before_the_start_and_hosts_that_wait() -> None:
    """A stop ends what has not begun; hosts that wait are announced to ranks that have."""
    plan = make_plan(LaunchConfig(gpu_ids=None))
    job = Job(plan=plan, payload=pickle_with_code((os.getpid, ())), preload=())
    begun: list[int] = []

    def make_start(index: int, _: int) -> tuple[dict[str, Any], bytes]:
        assert not coordinator._rejoin_requested
        begun.append(index)
        coordinator._on_signal(signal.SIGTERM)
        environ = {"PYTHONPATH": os.pathsep.join(sys.path)}
        return {"environ": environ, "host": "localhost", "log_dir": None}, pickle.dumps(job)

    coordinator = Coordinator(plan, [open_handle("localhost", ssh_config_file=None, transport="ssh")], lambda: True)
    assert coordinator.run(make_start).stop_signal == signal.SIGTERM
    assert begun == [0]
    coordinator = Coordinator(plan, [open_handle("localhost", ssh_config_file=None, transport="ssh")])
    coordinator._on_signal(signal.SIGTERM)
    result = coordinator.run(make_start)
    assert (begun, result.stop_signal, result.not_saved_s) == ([0], signal.SIGTERM, None)


@pytest.mark.process
def test_a_restart_does_without_a_log_folder_that_cannot_be_made(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first start does not: the folder is what was asked for."""
    (tmp_path / "file").touch()
    plan = make_plan(LaunchConfig(gpu_ids=None, max_restarts=1))
    for restarts in (0, 1):
        payload = pickle_with_code((lambda context: context.restarts, ()))
        job = Job(plan=plan.with_restarts(restarts), payload=payload, preload=())
        environ = {"PYTHONPATH": os.pathsep.join(sys.path)}
        coordinator = Coordinator(plan, [open_handle("localhost", ssh_config_file=None, transport="ssh")])
        fields = {"environ": environ, "host": "localhost", "log_dir": str(tmp_path / "file" / "logs")}
        result = coordinator.run(lambda *_, fields=fields, job=job: (fields, pickle.dumps(job)))
        assert (result.failure is None) == (restarts == 1)
    assert result.value is not None
    assert pickle.loads(result.value) == 1
    assert capfd.readouterr().err.splitlines() == [
        f"warning: host localhost: {tmp_path}/file/logs cannot be written (Not a directory); this start writes no log "
        "files there"
    ]


@pytest.mark.process
def test_the_address_of_a_host_is_not_that_of_the_users_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that are started here or by srun inherit the variable from the shell of the user."""
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 50000 10.0.0.1 22")
    facts: list[dict[str, Any]] = []
    call_on_hosts(
        "mjtrain.launcher.multinode.node_agent:describe_host",
        {"localhost": {"folder": None, "with_gpus": False, "names": []}},
        LaunchConfig(),
        lambda _, value: facts.append(value),
        lambda _, problem: pytest.fail(problem),
        timeout_s=patience(30),
    )
    assert facts[0]["connection"] == []


def test_ranks_meet_at_an_ipv4_address() -> None:
    far: dict[str, Any] = {"interfaces": {}, "connection": ["fe80::9", "50000", "fe80::1", "22"], "resolved": {}}
    here: dict[str, Any] = {**far, "connection": [], "resolved": {"far": "10.0.0.2"}}
    far["resolved"] = {"here": "10.0.0.1"}
    facts = {"here": here, "far": far}
    assert [_find_address(name, facts, None) for name in facts] == ["10.0.0.1", "10.0.0.2"]
    with pytest.raises(ConnectionError, match=r"does not resolve to an IPv4 address \(only IPv4 is supported\)"):
        listen_at("::1", free_port(), for_others=True)
