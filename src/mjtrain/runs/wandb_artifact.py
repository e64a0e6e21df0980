"""Files of W&B's artifacts and registries, by its public API, whose calls may never return."""

import base64
import contextlib
import hashlib
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mjtrain.runtime import heartbeat
from mjtrain.runtime.errors import OutsideError, RequestError, first_line_of
from mjtrain.runtime.files import read_regular
from mjtrain.runtime.processes import list_descendants, send_signal

if TYPE_CHECKING:
    from wandb.sdk.artifacts.artifact_manifest_entry import ArtifactManifestEntry

_T = TypeVar("_T")

_TIMEOUT_S = 15
"""Longest wait for one answer of W&B, and for the end of its process."""

_FETCH_TIMEOUT_S = 600.0
"""Longest wait for a file."""

_WAITS = 100
"""How many parts a wait has: a process that was stopped meanwhile has used up one of them, not all."""


def has_credentials() -> bool:
    """Return whether W&B knows its user without asking; never if it is set to offline."""
    import wandb

    try:
        return wandb.login(prompt=False, verify=False)
    except Exception:  # damaged credentials count as none
        return False


def call_within(timeout_s: float, action: Callable[[], _T]) -> _T:
    """Return what a call of W&B returns, which waits for W&B's process and may therefore never do so.

    After timeout_s seconds it raises a TimeoutError and abandons its thread. `kill_process` ends what it waits for.
    """
    future: Future[_T] = Future()

    def call() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=call, name="mjtrain-wandb", daemon=True)
    thread.start()
    for _ in range(_WAITS):
        thread.join(timeout_s / _WAITS)
        heartbeat.beat()  # a training that waits for W&B does not hang, as the wait ends
    if not future.done():
        raise TimeoutError(f"no answer for {timeout_s:g} s")
    return future.result()


def kill_process() -> None:
    """End W&B's process, if this process has started one, and its threads; otherwise the end of Python waits for it."""
    for pid in list_descendants(os.getpid()):
        with contextlib.suppress(OSError):
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            if name.endswith("(wandb-core") and int(rest.split()[1]) == os.getpid():
                send_signal([pid], signal.SIGKILL)
    import wandb

    with contextlib.suppress(Exception, SystemExit):  # the latter with the status of W&B's process
        call_within(_TIMEOUT_S, wandb.teardown)


def fetch_from_artifact(place: str, name: str, size: int) -> tuple[str, bytes]:
    """Return name and content of the only .npz file in an artifact; nothing in it is run.

    Args:
        place: How the user names the artifact, for errors.
        name: How W&B names it, as in entity/project/name:version.
        size: Limit, in bytes.

    Raises:
        RequestError: The artifact does not exist or lacks a single motion file, or nobody is logged in.
        OutsideError: W&B cannot be reached, refuses, or gives another content than the artifact lists.
    """
    import wandb

    is_alone = wandb.run is None  # a program may have a W&B run already
    if is_alone:
        wandb.setup(wandb.Settings(silent=True))
    try:
        return call_within(_FETCH_TIMEOUT_S, lambda: _fetch(place, name, size))
    except (RequestError, OutsideError):
        raise
    except Exception as error:  # W&B passes on those of its HTTP clients
        line = first_line_of(error) or type(error).__name__
        if isinstance(getattr(error, "exc", error), ValueError):
            raise RequestError(f"{place}: W&B: {line}") from error
        raise OutsideError(f"{place}: W&B: {line}") from error
    finally:
        if is_alone:  # before ranks are forked
            try:
                call_within(_TIMEOUT_S, wandb.teardown)
            except (Exception, SystemExit):  # what was fetched counts, however W&B's process ends
                kill_process()


def _fetch(place: str, name: str, size: int) -> tuple[str, bytes]:
    import wandb

    if not has_credentials():
        missing = "no W&B API key found (WANDB_API_KEY or wandb login), or WANDB_MODE is offline"
        raise RequestError(f"{place}: {missing}")
    artifact = wandb.Api(timeout=_TIMEOUT_S).artifact(name)
    names = [path for path in artifact.manifest.entries if path.endswith(".npz")]
    if len(names) != 1:
        raise RequestError(f"{place}: has {len(names) or 'no'} .npz files; it must have one")
    entry = artifact.get_entry(names[0])
    if entry.ref is not None:
        raise RequestError(f"{place}: {names[0]} is a reference to {entry.ref}; name that place")
    if (entry.size or 0) > size:
        raise RequestError(f"{place}: {names[0]} is larger than {size >> 20} MiB")
    with tempfile.TemporaryDirectory() as folder:
        content = read_regular(Path(entry.download(folder, skip_cache=True)), size + 1)
    _check(content, entry, f"{place}: {names[0]}")
    return Path(names[0]).name, content


def _check(content: bytes, entry: "ArtifactManifestEntry", label: str) -> None:
    """Compare a file with the list of its artifact: its size, and its digest if that is MD5 (and not xxHash)."""
    if entry.size is not None and len(content) != entry.size:
        raise OutsideError(f"{label} has {len(content)} bytes, and its artifact lists {entry.size}; try again")
    digest = base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
    if "md5" in str(entry.digest_algorithm()).lower() and digest != entry.digest:
        raise OutsideError(f"{label} is not the file that its artifact lists; try again")
