"""Object storage: an object is written, read and deleted."""

import contextlib
import io
import time
import uuid
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mjtrain.runs.storage import StorageError
from mjtrain.runs.storage.store import Storage
from mjtrain.tools.doctor.finding import Finding, Question, failure, ok
from mjtrain.tools.doctor.folder import PREFIX, nearest_existing

_ADVICE = (
    "check the bucket, the credentials in the environment and their rights to put, get and delete, and the proxy; "
    "docs/storage.md has what is read"
)


def check_storage(question: Question) -> list[Finding]:
    """Write, read and delete one object below --checkpoint-url."""
    url = question.checkpoint_url
    assert url is not None
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
        return [failure("storage", str(error), _ADVICE)]
    finally:
        for folder in made:
            with contextlib.suppress(OSError):  # not empty any more, or never made
                folder.rmdir()
    if found is None or found[0] != content:
        return [failure("storage", f"{url}: an object that was written could not be read again", _ADVICE)]
    return [ok("storage", f"{url}: wrote, read and deleted an object in {time.monotonic() - begin_s:.2f} s")]


def _missing_folders(url: str) -> list[Path]:
    """Return the folders that a file:// URL creates, the innermost first."""
    if urlsplit(url).scheme != "file":
        return []
    folder = Path(unquote(urlsplit(url).path))
    there = nearest_existing(folder)
    return [place for place in (folder, *folder.parents) if place.is_relative_to(there) and place != there]
