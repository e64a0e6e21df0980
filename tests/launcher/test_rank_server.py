"""The supervisor's connections to ranks, while it has no free descriptor."""

import os
import resource
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from mjtrain.config import LaunchConfig
from mjtrain.launcher import make_plan
from mjtrain.launcher.ipc.messages import Sender, connect, receive_descriptors
from mjtrain.launcher.ipc.signals import EventLoop
from mjtrain.launcher.job.diagnosis import RankState
from mjtrain.launcher.job.outputs import Console
from mjtrain.launcher.job.rank_server import RankServer
from mjtrain.runtime.processes import module_path
from support.machine import patience


class Listener:
    def on_hello(self, state: RankState) -> None: ...

    def on_message(self, state: RankState | None, message: dict[str, Any], body: bytes) -> None: ...

    def on_hang_up(self, state: RankState | None) -> None: ...


def test_a_rank_waits_until_a_descriptor_is_free(tmp_path: Path) -> None:
    """Neither a connection that cannot be accepted nor pipes that cannot be made end the job.

    In a process that does nothing else: any thread of this one that needs a descriptor meanwhile would fail.
    """
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": module_path()},
        capture_output=True,
        text=True,
        timeout=patience(60.0),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "warning: a rank has to wait: Too many open files\n")
    assert "a line" in (tmp_path / "here[1].log").read_text()


def serve_without_descriptors(folder: Path) -> None:
    """Be a supervisor and its rank 1, whose connection arrives while no descriptor is free."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    plan = make_plan(LaunchConfig(gpu_ids=None, num_workers=2))
    console = Console()
    with EventLoop(lambda _: None) as loop:
        listener: Any = Listener()
        server = RankServer(plan, folder, folder, console, host="here", is_here=True, loop=loop, listener=listener)
        with server.listen(), connect(folder) as rank:
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


if __name__ == "__main__":
    serve_without_descriptors(Path(sys.argv[1]))
