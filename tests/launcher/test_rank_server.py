"""The supervisor's connections to ranks, while it has no free descriptor."""

import os
import resource
import socket
import threading
from pathlib import Path
from typing import Any

from mjtrain.config import LaunchConfig
from mjtrain.launcher import make_plan
from mjtrain.launcher.ipc.event_loop import EventLoop
from mjtrain.launcher.ipc.messages import Sender, connect, receive_descriptors
from mjtrain.launcher.job.health import RankState
from mjtrain.launcher.job.outputs import Console
from mjtrain.launcher.job.rank_server import RankServer
from support.machine import patience


class Listener:
    def on_hello(self, state: RankState) -> None: ...

    def on_message(self, state: RankState | None, message: dict[str, Any], body: bytes) -> None: ...

    def on_hang_up(self, state: RankState | None) -> None: ...


def test_a_rank_waits_until_a_descriptor_is_free(tmp_path: Path, capsys: Any) -> None:
    """Neither a connection that cannot be accepted nor pipes that cannot be made end the job."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    plan = make_plan(LaunchConfig(gpu_ids=None, num_workers=2))
    console = Console()
    with EventLoop(lambda _: None) as loop:
        server = RankServer(
            plan, tmp_path, tmp_path, console, host="here", is_here=True, loop=loop, listener=Listener()
        )
        with server.listen(), connect(tmp_path) as rank:
            Sender(rank).send("hello", rank=1, pid=os.getpid(), host=socket.gethostname())
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
            free = threading.Timer(0.5, resource.setrlimit, (resource.RLIMIT_NOFILE, (soft, hard)))
            free.start()
            try:
                while 1 not in server.states and free.is_alive():
                    loop.turn()
            finally:
                free.join()
            loop.turn()
            loop.turn()
            rank.settimeout(patience(5.0))
            streams = receive_descriptors(rank, 2)
            os.write(streams[0], b"a line\n")
            for stream in streams:
                os.close(stream)
            server.close(patience(5.0))
    assert "a line" in (tmp_path / "here[1].log").read_text()
    assert capsys.readouterr().err == "warning: a rank has to wait: Too many open files\n"
