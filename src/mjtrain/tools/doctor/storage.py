"""Where a run writes: the folder below which runs live, and object storage. What a check writes there, it deletes."""

import contextlib
import errno
import io
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mjtrain.runs.storage import Storage, StorageError
from mjtrain.runtime.machine import format_bytes, nearest_existing
from mjtrain.tools.doctor.finding import Finding, Question, failure, grade, ok, skipped

PREFIX = ".mjtrain-doctor-"
"""Beginning of the names of what is written, and deleted again."""

_LEAST_BYTES, _GOOD_BYTES = 100 << 20, 2 << 30
_PROBE_BYTES = 16 << 20
_SLOW_BYTES_PER_S = 10e6

_OTHER = "or give another --log-root"
_ADVICE = {
    errno.EROFS: f"mount it with write permission (`mount -o remount,rw`), {_OTHER}",
    errno.EACCES: f"make it writable for this user (`chown`, `chmod u+w`), {_OTHER}",
    errno.EPERM: f"make it writable for this user (`chown`, `chmod u+w`), {_OTHER}",
    errno.ENOSPC: f"delete old runs, keep fewer checkpoints (--keep-checkpoints N), {_OTHER}",
    errno.EDQUOT: f"the user's quota is used up: delete old runs, {_OTHER}",
    errno.ESTALE: "the server has exported it again: remount it on this host",
}


def check_log_root(question: Question) -> list[Finding]:
    """Check free space, then write, and delete what was written."""
    root = Path(question.log_root)
    place = nearest_existing(root)
    if not place.is_dir():
        return [failure("log root", f"{place} is a file", "give a folder as --log-root")]
    space = _check_space(place)
    if space.result == "failure":
        return [space, skipped("log root", f"{root}: no space to try")]
    return [space, _check_writes(root, place)]


def _check_space(place: Path) -> Finding:
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    if found.f_files and not found.f_favail:
        advice = f"no more files can be made there: delete many small ones, {_OTHER}"
        return failure("disk space", f"{format_bytes(free)}, but no inode free at {place}", advice)
    figure = f"{format_bytes(free)} free at {place}"
    return grade("disk space", figure, _ADVICE[errno.ENOSPC], warns=free < _GOOD_BYTES, fails=free < _LEAST_BYTES)


def _check_writes(root: Path, place: Path) -> Finding:
    """Do what saving a checkpoint does, in a separate folder."""
    folder = place / f"{PREFIX}{uuid.uuid4().hex}"
    try:
        folder.mkdir()
        try:
            speed, fsync_s = _write(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, f"look at the kernel's messages (dmesg), {_OTHER}")
        return failure("log root", f"{root}: {(error.strerror or str(error)).lower()}", advice)
    figure = f"{root}: {format_bytes(int(speed))}/s, fsync {fsync_s * 1000:.1f} ms, rename"
    advice = "give a --log-root on a faster disk, or a larger --agent.save-interval"
    return grade("log root", figure, advice, warns=speed < _SLOW_BYTES_PER_S)


def _write(folder: Path) -> tuple[float, float]:
    """Write a file, replace another by it, and read it; bytes/s with an fsync, and the seconds of a small fsync."""
    content = os.urandom(1 << 20)
    final, partial = folder / "file", folder / ".file.partial"
    final.write_bytes(b"before")
    begin_s = time.monotonic()
    with partial.open("wb") as file:
        for _ in range(_PROBE_BYTES >> 20):
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
        wrote_s = time.monotonic() - begin_s
        file.write(b"end")
        file.flush()
        begin_s = time.monotonic()
        os.fsync(file.fileno())
        fsync_s = time.monotonic() - begin_s
    partial.replace(final)
    if partial.exists() or final.stat().st_size != _PROBE_BYTES + 3 or final.read_bytes()[: 1 << 20] != content:
        raise OSError(errno.EIO, "it gives back other bytes than were written")
    return _PROBE_BYTES / max(wrote_s, 1e-6), fsync_s


def check_storage(question: Question) -> list[Finding]:
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
    folder = Path(unquote(urlsplit(url).path))
    while urlsplit(url).scheme == "file" and not folder.exists():
        yield folder
        folder = folder.parent
