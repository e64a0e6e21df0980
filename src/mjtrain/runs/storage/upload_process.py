"""The upload process of a rank.

Reads JSON lines on standard input: first {"url", "keep"}, then {"path"} of a checkpoint or {"hurry"}; writes events on
standard output. It exits when its input ends, even during an upload, because the rank has ended then.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from mjtrain.runs.checkpoint import checkpoint_iteration
from mjtrain.runs.storage.publish import NewerThereError, publish
from mjtrain.runs.storage.store import Storage, StorageError

FIRST_BACK_OFF_S = 1.0
MAX_BACK_OFF_S = 60.0


class _Inbox:
    """The newest checkpoint that waits to be uploaded."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._path: Path | None = None
        self._hurry = False

    def read_for_ever(self, lines: IO[str]) -> None:
        """Read messages from the rank, and exit when the rank ends."""
        for line in lines:
            message = json.loads(line)
            with self._changed:
                if "path" in message:
                    self._path = Path(message["path"])  # the newest wins
                self._hurry = self._hurry or "hurry" in message
                self._changed.notify_all()
        os._exit(0)

    def pop(self) -> Path:
        """Wait for a checkpoint."""
        with self._changed:
            self._changed.wait_for(lambda: self._path is not None)
            path, self._path = self._path, None
            assert path is not None
            return path

    def wait(self, back_off_s: float) -> bool:
        """Wait before the next attempt; return whether there is a newer checkpoint to upload instead."""
        with self._changed:
            if self._hurry:
                back_off_s = min(back_off_s, FIRST_BACK_OFF_S)
            hurried = self._hurry
            self._changed.wait_for(lambda: self._path is not None or self._hurry != hurried, back_off_s)
            return self._path is not None


def main() -> None:
    """Upload until the input ends."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)  # the rank decides when uploading ends
    settings = json.loads(sys.stdin.readline())
    inbox = _Inbox()
    threading.Thread(target=inbox.read_for_ever, args=(sys.stdin,), daemon=True).start()
    while True:
        _upload(inbox.pop(), inbox, **settings)


def _upload(path: Path, inbox: _Inbox, *, url: str, keep: int | None) -> None:
    """Upload one checkpoint, and retry until it is stored or a newer one arrives."""
    begin = time.monotonic()
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return  # --keep-checkpoints has deleted it already, so a newer one follows
    with file:
        attempts, back_off_s = 0, FIRST_BACK_OFF_S
        while True:
            attempts += 1
            about = {"path": str(path), "url": url, "iteration": checkpoint_iteration(path), "attempts": attempts}
            try:
                publish(Storage(url), path, file, keep=keep)
            except NewerThereError as error:
                _say(event="upload_refused", **about, error=str(error))
                return
            except (StorageError, OSError) as error:
                if attempts == 1:
                    _say(event="upload_failed", **about, error=str(error))
            else:
                _say(event="uploaded", **about, seconds=round(time.monotonic() - begin, 3))
                return
            if inbox.wait(back_off_s):
                return
            back_off_s = min(2 * back_off_s, MAX_BACK_OFF_S)


def _say(**event: Any) -> None:
    print(json.dumps(event), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
