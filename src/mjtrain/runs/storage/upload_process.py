"""The upload process of a rank.

Reads JSON lines on standard input: first the arguments of `_upload`, then {"path", "is_best"} of a checkpoint or
{"hurry"}; writes events on standard output. It exits when its input ends, even during an upload, because the rank has
ended then.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from mjtrain.launcher.ipc.signals import STOP_SIGNALS
from mjtrain.runs.checkpoint import checkpoint_iteration
from mjtrain.runs.storage.checkpoints import NewerThereError, TakenError, check_owner, publish, publish_best, take_url
from mjtrain.runs.storage.store import Storage, StorageError

FIRST_BACK_OFF_S = 1.0
MAX_BACK_OFF_S = 60.0

_events: IO[str] = sys.stdout
"""Where events go; `main` makes it what was standard output."""

_taken: set[str] = set()
"""The URL, once this process has recorded there that it uploads."""


class _Inbox:
    """The newest checkpoint that waits to be uploaded, and the best one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: Path | None = None
        self._best: Path | None = None
        self._hurry = False

    def read_for_ever(self, lines: IO[str]) -> None:
        """Read messages from the rank, and exit when the rank ends."""
        for line in lines:
            message = json.loads(line)
            with self._changed:
                if message.get("is_best"):
                    self._best = Path(message["path"])
                elif "path" in message:
                    self._newest = Path(message["path"])  # the newest wins
                self._hurry = self._hurry or "hurry" in message
                self._changed.notify_all()
        os._exit(0)

    def pop(self) -> tuple[Path, bool]:
        """Wait for a checkpoint; return it, and whether it is the best one. The newest comes first."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._best is not None)
            if self._newest is not None:
                path, self._newest = self._newest, None
                return path, False
            assert self._best is not None
            return self._best, True

    def settle_best(self, path: Path) -> None:
        """Forget the best one, unless it is another one by now."""
        with self._changed:
            if self._best == path:
                self._best = None

    def wait(self, back_off_s: float) -> bool:
        """Wait before the next attempt; return whether there is a newer checkpoint to upload instead."""
        with self._changed:
            if self._hurry:
                back_off_s = min(back_off_s, FIRST_BACK_OFF_S)
            hurried = self._hurry
            self._changed.wait_for(lambda: self._newest is not None or self._hurry != hurried, back_off_s)
            return self._newest is not None


def main() -> None:
    """Upload until the input ends."""
    global _events
    _events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an event
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)  # the rank decides when uploading ends
    settings = json.loads(sys.stdin.readline())
    inbox = _Inbox()
    threading.Thread(target=inbox.read_for_ever, args=(sys.stdin,), daemon=True).start()
    while True:
        path, is_best = inbox.pop()
        event = _upload(path, inbox, is_best=is_best, **settings)
        if event == "uploaded" or (is_best and event is not None):
            inbox.settle_best(path)


def _upload(
    path: Path, inbox: _Inbox, *, is_best: bool, url: str, keep: int | None, session: str, is_new: bool
) -> str | None:
    """Retry until a checkpoint is stored, and return the last event; None once a newer checkpoint has arrived."""
    begin = time.monotonic()
    try:
        file = path.open("rb")
    except FileNotFoundError:
        if is_best:
            return _say("upload_given_up", path=str(path), url=url, best=True, error="the file was deleted")
        return None  # --keep-checkpoints has deleted it already, so a newer one follows
    with file:
        attempts, back_off_s = 0, FIRST_BACK_OFF_S
        while True:
            attempts += 1
            about = {"path": str(path), "url": url, "iteration": checkpoint_iteration(path), "attempts": attempts}
            if is_best:
                about["best"] = True
            try:
                storage = Storage(url)
                if session and url not in _taken:
                    take_url(storage, session, path.parent.name, is_new=is_new)
                    _taken.add(url)
                elif session:
                    check_owner(storage, session, path.parent.name)
                if is_best:
                    publish_best(storage, path, file)
                else:
                    publish(storage, path, file, keep=keep)
            except NewerThereError as error:
                return _say("upload_refused", **about, error=str(error))
            except TakenError as error:
                return _say("upload_given_up", **about, error=str(error))
            except (StorageError, OSError) as error:
                if attempts == 1:
                    _say("upload_failed", **about, error=str(error))
            else:
                return _say("uploaded", **about, seconds=round(time.monotonic() - begin, 3))
            if inbox.wait(back_off_s):
                return None
            back_off_s = min(2 * back_off_s, MAX_BACK_OFF_S)


def _say(event: str, **fields: Any) -> str:
    print(json.dumps({"event": event, **fields}), file=_events, flush=True)
    return event


if __name__ == "__main__":
    main()
