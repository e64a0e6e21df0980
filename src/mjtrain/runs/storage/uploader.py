"""Uploads during training: the rank passes file names to a process, reads its events, and never waits.

A separate process does the work (`upload_process.py`): hashing and sending take neither the rank's Python lock nor time
of its env steps, and an upload that hangs in a dead network can be ended at any moment.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mjtrain.runtime import heartbeat


@dataclass(frozen=True, kw_only=True)
class UploadEvent:
    """A change in the state of an upload."""

    event: str
    """uploaded, upload_failed (it is retried), upload_refused (a newer one is stored), or upload_given_up."""

    fields: dict[str, Any] = field(default_factory=dict)
    """Details as plain values, the iteration first."""

    line: str | None = None
    """What to tell the user at once; None where nothing is wrong."""


class Uploader:
    """Uploads the newest checkpoint of a run, after each save.

    At most two are pending: the one being uploaded, and the newest one submitted since.
    """

    def __init__(self, url: str, keep: int | None) -> None:
        """Start the process that uploads.

        Args:
            url: As `check_url` returns it.
            keep: How many iterations stay in the storage, the newest and the best; None keeps all.
        """
        self._url = url
        self._keep = keep
        self._process = self._start()
        self._buffer = b""
        self._unsettled: Path | None = None
        self._last_error = "no answer yet"

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mjtrain.runs.storage.upload_process"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a signal from the terminal must not end the upload of the last checkpoint
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        self._tell(process, {"url": self._url, "keep": self._keep})
        return process

    @staticmethod
    def _tell(process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the next read of its output reports that it ended
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()

    def submit(self, path: Path) -> None:
        """Upload a checkpoint as soon as possible, unless a newer one is submitted before that."""
        if self._process.poll() is not None:
            self._process = self._start()
        self._unsettled = path
        self._tell(self._process, {"path": str(path)})

    def poll_events(self) -> list[UploadEvent]:
        """Return the events since the last call; does not wait."""
        assert self._process.stdout is not None
        data = self._process.stdout.read()  # None while there is nothing, b"" when the process has ended
        if data is not None:
            self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        events = [self._take(json.loads(line)) for line in lines]
        if data == b"" and self._unsettled is not None:
            self._process.wait()
            events.append(self._give_up(f"the upload process exited with status {self._process.returncode}"))
        return events

    def _take(self, message: dict[str, Any]) -> UploadEvent:
        event, path = message.pop("event"), Path(message.pop("path"))
        if event != "upload_failed" and path == self._unsettled:
            self._unsettled = None
        error = message.get("error")
        line = None
        if event == "upload_failed":
            self._last_error = str(error)
            line = f"{path.name} could not be uploaded ({error}); retrying, and training continues"
        elif event == "upload_refused":
            line = f"{path.name} is stored, but it is not the latest one: {error}"
        elif message.get("attempts", 1) > 1:
            line = f"{path.name} was uploaded at attempt {message['attempts']}"
        return UploadEvent(event=event, fields=message, line=line)

    def flush(self, timeout_s: float) -> list[UploadEvent]:
        """Wait until the last checkpoint is uploaded, and return the events.

        Args:
            timeout_s: Longest wait, in seconds.
        """
        if self._unsettled is None:
            return self.poll_events()
        self._tell(self._process, {"hurry": True})
        events = []
        deadline = time.monotonic() + timeout_s
        while self._unsettled is not None and time.monotonic() < deadline:
            events += self.poll_events()
            heartbeat.beat()
            time.sleep(0.05)
        if self._unsettled is not None:
            events.append(self._give_up(f"not done within {timeout_s:g} s (--checkpoint-flush-s): {self._last_error}"))
        return events

    def _give_up(self, error: str) -> UploadEvent:
        assert self._unsettled is not None
        path, self._unsettled = self._unsettled, None
        return UploadEvent(
            event="upload_given_up",
            fields={"checkpoint": path.name, "url": self._url, "error": error},
            line=f"{path.name} was not uploaded to {self._url}: {error}; the local copy is in {path.parent}",
        )

    def close(self) -> None:
        """End at once; call `flush` before to have the last checkpoint uploaded."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
