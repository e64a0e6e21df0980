"""Object storage: an object is written, read and deleted."""

import contextlib
import io
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from mjtrain.runs.storage.store import Storage, StorageError, local_folder
from mjtrain.runtime.machine import nearest_existing
from mjtrain.tools.doctor.finding import Finding, Question, failure, ok
from mjtrain.tools.doctor.log_root import PREFIX


def check(question: Question) -> list[Finding]:
    """Write, read and delete one object below --checkpoint-url."""
    url = question.checkpoint_url
    assert url is not None
    advice = (
        "check the bucket, the credentials in the environment and their rights to put, get and delete, and the proxy; "
        "docs/storage.md has what is read"
    )
    name, content = f"{PREFIX}{uuid.uuid4().hex}", uuid.uuid4().bytes
    made = list(_missing_folders(url))
    begin_s = time.monotonic()
    try:
        storage = Storage(url)
        try:
            storage.upload(name, io.BytesIO(content))
            found = storage.read(name)
        finally:
            storage.delete([name])
    except StorageError as error:
        return [failure("storage", str(error), advice)]
    finally:
        for folder in made:
            with contextlib.suppress(OSError):  # not empty any more, or never made
                folder.rmdir()
    if found is None or found[0] != content:
        return [failure("storage", f"{url}: an object that was written could not be read again", advice)]
    return [ok("storage", f"{url}: wrote, read and deleted an object in {time.monotonic() - begin_s:.2f} s")]


def _missing_folders(url: str) -> Iterator[Path]:
    """Yield the folders that a file:// URL creates, the innermost first."""
    folder = local_folder(url)
    while folder is not None and nearest_existing(folder) != folder:
        yield folder
        folder = folder.parent
