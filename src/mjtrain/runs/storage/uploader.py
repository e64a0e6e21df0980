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
from typing import Any, Literal

from mjtrain.runtime import heartbeat
from mjtrain.runtime.processes import module_path

Slot = Literal["newest", "best"]
"""As what a checkpoint is uploaded."""


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
    """Uploads the newest checkpoint of a run, after each save, and the best one.

    At most three are pending: the one being uploaded, and the newest and the best one submitted since.
    """

    def __init__(self, url: str, keep: int | None, session: str = "", *, is_new: bool = True) -> None:
        """Start the process that uploads.

        Args:
            keep: How many iterations stay in the storage, the newest and the best; None keeps all.
            session: That of the claim to the run directory, which the storage must not know another one of; empty for
                none.
            is_new: Whether the run is new, so that it may not take the place of another one.
        """
        self._url = url
        self._settings = {"url": url, "keep": keep, "session": session, "is_new": is_new}
        self._start()
        self._buffer = b""
        self._unsettled: dict[Slot, Path] = {}
        self._lost: dict[Slot, tuple[Path, str]] = {}
        self._last_error = "no answer yet"

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mjtrain.runs.storage.upload_process"],
            env={**os.environ, "PYTHONPATH": module_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a signal from the terminal must not end the upload of the last checkpoint
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._tell(self._settings)

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the next read of its output reports that it ended
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    @property
    def missing(self) -> str | None:
        """Which checkpoint did not reach the storage, and why; None if both, the newest and the best one, did."""
        return next((line for _, line in self._lost.values()), None)

    def submit(self, path: Path, *, is_best: bool = False) -> None:
        """Upload a checkpoint as soon as possible, unless a newer one is submitted before that.

        Args:
            is_best: Whether it is the best one so far, which newer ones do not replace. It must be submitted as the
                newest one too.
        """
        best = path if is_best else None
        if self._process.poll() is not None:
            waiting = self._unsettled.get("best") or self._lost.get("best", (None,))[0]
            best = best or waiting  # the process that ended cannot upload it any more
            with contextlib.suppress(OSError):  # short of memory or files: the next `poll_events` gives it up
                self._start()
        self._submit(path, "newest")
        if best is not None:
            self._submit(best, "best")

    def submit_best(self, path: Path) -> None:
        """Upload the best checkpoint of a run that is resumed from a newer one."""
        self._submit(path, "best")

    def _submit(self, path: Path, slot: Slot) -> None:
        self._unsettled[slot] = path
        self._lost.pop(slot, None)
        self._tell({"path": str(path), **({"is_best": True} if slot == "best" else {})})

    def poll_events(self) -> list[UploadEvent]:
        """Return the events since the last call; does not wait."""
        assert self._process.stdout is not None
        data = self._process.stdout.read()  # None while there is nothing, b"" when the process has ended
        if data is not None:
            self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        messages = [message for line in lines if (message := _parse(line)) is not None]
        events = [self._take(message) for message in messages]
        if data == b"" and self._unsettled:
            self._process.wait()
            events += self._give_up(f"the upload process exited with status {self._process.returncode}")
        return events

    def _take(self, message: dict[str, Any]) -> UploadEvent:
        event, path = message.pop("event"), Path(message.pop("path"))
        error = message.get("error")
        line = None
        if event != "upload_failed":
            settled: tuple[Slot, ...] = ("newest", "best")
            if event != "uploaded":
                settled = ("best",) if message.get("best") else ("newest",)
            for slot in settled:
                if self._unsettled.get(slot) == path:
                    del self._unsettled[slot]
                    if event == "upload_given_up":
                        line = self._describe_loss(path, str(error))
                        self._lost[slot] = (path, line)
        if event == "upload_failed":
            self._last_error = str(error)
            line = f"{path.name} could not be uploaded ({error}); retrying, and training continues"
        elif event == "upload_refused":
            line = f"{path.name} is stored, but it is not the latest one: {error}"
        elif message.get("attempts", 1) > 1:
            line = f"{path.name} was uploaded at attempt {message['attempts']}"
        return UploadEvent(event=event, fields=message, line=line)

    def flush(self, timeout_s: float) -> list[UploadEvent]:
        """Wait until the last checkpoint is uploaded, and return the events."""
        if not self._unsettled:
            return self.poll_events()
        self._tell({"hurry": True})
        events = []
        deadline = time.monotonic() + timeout_s
        while self._unsettled and time.monotonic() < deadline:
            events += self.poll_events()
            heartbeat.beat()
            time.sleep(0.05)
        if self._unsettled:
            events += self._give_up(f"not done within {timeout_s:g} s (--checkpoint-flush-s): {self._last_error}")
        return events

    def _give_up(self, error: str) -> list[UploadEvent]:
        lost, self._unsettled = self._unsettled, {}
        self._lost |= {slot: (path, self._describe_loss(path, error)) for slot, path in lost.items()}
        return [
            UploadEvent(
                event="upload_given_up",
                fields={"checkpoint": path.name, "url": self._url, "error": error},
                line=self._describe_loss(path, error),
            )
            for path in dict.fromkeys(lost.values())
        ]

    def _describe_loss(self, path: Path, error: str) -> str:
        return f"{path.name} was not uploaded to {self._url}: {error}; the local copy is in {path.parent}"

    def close(self) -> None:
        """End at once; call `flush` before to have the last checkpoint uploaded."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _parse(line: bytes) -> dict[str, Any] | None:
    """Parse an event; None for what a library printed before the upload process could prevent that."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and {"event", "path"} <= message.keys() else None
