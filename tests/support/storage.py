"""A network that can be slow, stall or be cut, in front of a real server; and the command train with a storage."""

import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from support.commands import BIN, start
from support.machine import patience, wait_until

SECRET = "a-well-kept-secret-access-key"


class Proxy:
    """Forwards TCP connections to a server.

    Attributes:
        rate: Bytes per second towards the server; None for as fast as it goes.
        stall_on: Requests whose first line this pattern finds get stuck after a kilobyte, and are cut when it is None
            again.
        up: Whether there is a server at all; otherwise connections are closed at once.
        stalled, dropped: Whether that has happened, and whether the sender of such a request has gone.
        requests: The first line of every request.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.rate: float | None = None
        self.stall_on: re.Pattern[bytes] | None = None
        self.up = True
        self.stalled = threading.Event()
        self.dropped = threading.Event()
        self.requests: list[str] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def close(self) -> None:
        """Accept no more connections; returns when the thread that does has ended."""
        self.stall_on = None
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread, which would keep the socket open otherwise
        self._thread.join()
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target) if self.up else None
            except OSError:  # the next connection may find the server again
                server = None
            if server is None:
                client.close()
                continue
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self._return, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(1024):
                if data[:5] in (b"PUT /", b"GET /", b"HEAD ", b"POST ", b"DELET"):
                    self.requests.append(data.split(b"\r\n")[0].decode())
                    if self.stall_on is not None and self.stall_on.search(data.split(b"\r\n")[0]):
                        server.sendall(data)
                        self.stalled.set()
                        self._swallow(client)
                server.sendall(data)
                if self.rate is not None:
                    time.sleep(len(data) / self.rate)
                if not self.up:
                    break
        except OSError:
            pass
        finally:
            for end in (server, client):
                end.close()

    def _swallow(self, client: socket.socket) -> None:
        """Keep a request from the server for as long as its sender waits, or until the stall is over; then cut it."""
        client.settimeout(0.05)
        while self.stall_on is not None:
            try:
                if not client.recv(65536):
                    self.dropped.set()
                    break
            except TimeoutError:
                continue
            except OSError:
                self.dropped.set()
                break
        raise ConnectionError

    def _return(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(65536):
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)  # a server that hangs up is not waited for
        except OSError:
            pass


class Training:
    """The command train, in a process."""

    def __init__(self, folder: Path, *args: str, task: str = "Cartpole-Balance") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._stdout, self._stderr = (folder / "stdout").open("w+"), (folder / "stderr").open("w+")
        command = [BIN / "train", task, "--gpu-ids", "None", "--num-threads", "1", "--num-envs", "4"]
        self.process = start(
            [*command, "--logger", "none", "--agent.num-steps-per-env", "8", *args],
            cwd=folder,
            environ=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
            stdout=self._stdout,
            stderr=self._stderr,
        )

    @property
    def stdout(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    @property
    def run_dir(self) -> Path:
        (found,) = self.folder.glob("logs/*/*")
        return found

    def wait_until(self, condition: Callable[[], bool]) -> None:
        wait_until(lambda: condition() or self.process.poll() is not None, "the training came to that")
        assert condition(), self.stdout + self.stderr

    def finish(self, status: int) -> None:
        try:
            assert self.process.wait(patience(60.0)) == status, self.stdout + self.stderr
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
